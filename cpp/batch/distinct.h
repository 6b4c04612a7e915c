// Finds sorted distinct integers with counts and inverse, like torch.unique, in a few passes over memory. Next:
// bindings/records.cpp, dataworker/split/program/moved_program.py.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

struct DistinctOut {
  int64_t* values;   // each array has room for as many integers as are given
  int64_t* inverse;  // for each given integer, its index in `values`; may be null
  int64_t* counts;   // may be null
};

// Returns the number of distinct integers and writes the non-null arrays of `out`. `given` has fewer than 2^32
// integers.
uint64_t distinct(std::span<const int64_t> given, const DistinctOut& out);

// Verifies a result of `distinct`: returns true only if `values` ascend, and give each integer of `given` by its index
// in `inverse`, as often as `counts` says. Only one result can pass this test.
bool is_distinct(std::span<const int64_t> given, std::span<const int64_t> values, std::span<const int64_t> inverse,
                 std::span<const int64_t> counts);

}  // namespace springtide
