// The initial value of a row, which is a function of (seed, table, key) and the same on every machine. In:
// hash_key(table, key) and the seed. Out: float32 weights. Tests compare the values with reference.py.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace springtide {

struct RowInit {
  InitKind kind = InitKind::zeros;
  float low = 0, span = 0;  // uniform, xavier
  float mean = 0, std = 0;  // normal
  uint64_t seed = 0;

  RowInit() = default;
  RowInit(const InitSpec& spec, uint32_t dim, uint64_t store_seed);
  void fill(uint64_t hash, float* out, uint32_t dim) const;
};

}  // namespace springtide
