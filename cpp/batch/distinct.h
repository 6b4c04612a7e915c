// Sorted distinct integers with counts and inverse, like torch.unique, in a few passes over memory.
// Next: bindings/records.cpp, dataworker/split/program/moved_program.py.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

struct DistinctOut {
  int64_t* values;   // room for as many as are given, like the others
  int64_t* inverse;  // the place among the values of each that is given; may be null
  int64_t* counts;   // may be null
};

// How many distinct ones there are; they and what else is wanted are written to `out`. Fewer than 2^32 are given.
uint64_t distinct(std::span<const int64_t> given, const DistinctOut& out);

}  // namespace springtide
