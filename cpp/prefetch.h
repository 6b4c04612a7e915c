// Asking for memory before it is needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace springtide {

constexpr size_t kLine = 64;
constexpr size_t kMostLines = 16;  // beyond 1 KiB the hardware has seen the pattern

inline void prefetch_read(const void* at) { __builtin_prefetch(at, 0); }

inline void prefetch_lines(const void* from, size_t bytes) {
  auto first = reinterpret_cast<uintptr_t>(from) & ~(kLine - 1);
  auto last = reinterpret_cast<uintptr_t>(from) + (bytes < kMostLines * kLine ? bytes : kMostLines * kLine);
  for (uintptr_t line = first; line < last; line += kLine)
    __builtin_prefetch(reinterpret_cast<void*>(line), 0);
}

inline void prefetch_lines_to_write(const void* from, size_t bytes) {
  auto first = reinterpret_cast<uintptr_t>(from) & ~(kLine - 1);
  auto last = reinterpret_cast<uintptr_t>(from) + (bytes < kMostLines * kLine ? bytes : kMostLines * kLine);
  for (uintptr_t line = first; line < last; line += kLine)
    __builtin_prefetch(reinterpret_cast<void*>(line), 1);
}

}  // namespace springtide
