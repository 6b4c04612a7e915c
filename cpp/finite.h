// Are gradients finite? Asked of every float that is pushed, by client and server.
#pragma once

#include <bit>
#include <cstdint>

namespace springtide {

// True when every float is finite: the exponent is all ones for no other. On integers, which the compiler may
// take several at a time; a sum of floats it may not.
inline bool all_finite(const float* values, uint64_t count) {
  uint32_t bad = 0;
  for (uint64_t i = 0; i < count; ++i) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) == 0x7f800000u);
  }
  return bad == 0;
}

}  // namespace springtide
