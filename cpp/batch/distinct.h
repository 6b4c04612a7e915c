// The distinct ones of many integers, rising, as torch.unique gives them, in a few passes over memory.
// In: integers of any range. Out: each one once, how often it came, and which one every integer is.
// Next: bindings/distinct.cpp, and dataworker/split/program/unique.py in the programs of data workers.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

struct DistinctOut {
  int64_t* values;   // room for as many as are given, like the others
  int64_t* inverse;  // the place among the values of each that is given; may be null
  int64_t* counts;   // may be null
};

// How many distinct ones there are; they and what else is wanted are written to `out`. Fewer than 2^32 are
// given.
uint64_t distinct(std::span<const int64_t> given, const DistinctOut& out);

}  // namespace springtide
