// Hides how a value was computed, so that the compiler cannot turn it into branches. Use it for values that a
// branch predictor cannot guess, such as which cell of a cache line holds a key.
#pragma once

namespace springtide {

[[gnu::always_inline]] inline unsigned branchless(unsigned value) {
  asm("" : "+r"(value));
  return value;
}

}  // namespace springtide
