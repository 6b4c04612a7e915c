#include "store/kernels/row_init.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "base/hash.h"

namespace springtide {

namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

// Returns 64 random bits for two adjacent weights, 32 bits for each.
uint64_t bits_of_pair(uint64_t row_seed, uint32_t pair) { return mix64(row_seed + (pair + 1) * kGolden); }

float unit24(uint64_t bits32) { return static_cast<float>(bits32 >> 8) * 0x1p-24f; }

void fill_uniform(uint64_t row_seed, float low, float span, float* out, uint32_t dim) {
  for (uint32_t i = 0; i + 1 < dim; i += 2) {
    uint64_t bits = bits_of_pair(row_seed, i / 2);
    out[i] = low + span * unit24(bits & 0xffffffff);
    out[i + 1] = low + span * unit24(bits >> 32);
  }
  if (dim % 2 != 0) out[dim - 1] = low + span * unit24(bits_of_pair(row_seed, dim / 2) & 0xffffffff);
}

// The Box-Muller transform runs in double precision, so that rounding to float32 hides differences in the last bits of
// log, cos and sin.
void fill_normal(uint64_t row_seed, float mean, float std, float* out, uint32_t dim) {
  for (uint32_t i = 0; i < dim; i += 2) {
    uint64_t bits = bits_of_pair(row_seed, i / 2);
    double u = (static_cast<double>(bits & 0xffffffff) + 0.5) * 0x1p-32;
    double angle = 2 * std::numbers::pi * (static_cast<double>(bits >> 32) * 0x1p-32);
    double radius = std::sqrt(-2 * std::log(u));
    out[i] = static_cast<float>(mean + std * (radius * std::cos(angle)));
    if (i + 1 < dim) out[i + 1] = static_cast<float>(mean + std * (radius * std::sin(angle)));
  }
}

}  // namespace

RowInit::RowInit(const InitSpec& spec, uint32_t dim, uint64_t store_seed)
    : kind(spec.kind), seed(mix64(store_seed + kGolden)) {
  if (kind == InitKind::uniform) {
    low = spec.a;
    span = spec.b - spec.a;
  } else if (kind == InitKind::normal) {
    mean = spec.a;
    std = spec.b;
  } else if (kind == InitKind::xavier) {
    auto bound = static_cast<float>(double{spec.a} * std::sqrt(6.0 / (double{spec.b} + dim)));
    low = -bound;
    span = 2 * bound;
  }
}

void RowInit::fill(uint64_t hash, float* out, uint32_t dim) const {
  uint64_t row_seed = mix64(hash ^ seed);
  switch (kind) {
    case InitKind::zeros:
      std::memset(out, 0, dim * sizeof(float));
      break;
    case InitKind::uniform:
    case InitKind::xavier:
      fill_uniform(row_seed, low, span, out, dim);
      break;
    case InitKind::normal:
      fill_normal(row_seed, mean, std, out, dim);
      break;
  }
}

}  // namespace springtide
