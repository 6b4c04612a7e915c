// For values that nobody can foretell, such as which cell of a line holds a key. A compiler that sees what a
// value is made of may make branches of its parts, and half of those would be guessed wrong, each time with
// the next misses not yet asked for. Behind this it knows nothing and has to compute the value.
#pragma once

namespace springtide {

[[gnu::always_inline]] inline unsigned unbranched(unsigned value) {
  asm("" : "+r"(value));
  return value;
}

}  // namespace springtide
