// Checks that gradients are finite. Client and server check every pushed float.
#pragma once

#include <bit>
#include <cstdint>

namespace springtide {

// Returns true if every float is finite, because only NaN and infinity have an exponent of all ones. The check uses
// integers, which the compiler can vectorize, and several independent accumulators, which avoid a chain of
// dependencies.
inline bool all_finite(const float* values, uint64_t count) {
  constexpr uint64_t kRuns = 16;
  constexpr uint32_t kExponent = 0x7f800000u;
  const auto odd = [](float value) { return (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? ~0u : 0u; };
  uint32_t bad[kRuns] = {};
  const uint64_t whole = count / kRuns * kRuns;
  for (uint64_t i = 0; i < whole; i += kRuns) {
    for (uint64_t run = 0; run < kRuns; ++run) bad[run] |= odd(values[i + run]);
  }
  for (uint64_t i = whole; i < count; ++i) bad[0] |= odd(values[i]);
  for (uint64_t run = 1; run < kRuns; ++run) bad[0] |= bad[run];
  return bad[0] == 0;
}

}  // namespace springtide
