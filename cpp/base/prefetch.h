// Cache-line prefetching of rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace springtide {

constexpr size_t kLine = 64;
constexpr size_t kMostLines = 16;  // beyond 1 KiB the hardware has seen the pattern

inline void prefetch_read(const void* at) { __builtin_prefetch(at, 0); }

// `kBytes`: as many as `bytes` when that is known beforehand. A multiple of lines then starts at one.
template <size_t kBytes = 0, int kToWrite = 0>
void prefetch_lines(const void* from, size_t bytes) {
  if constexpr (kBytes != 0 && kBytes % kLine == 0 && kBytes <= kMostLines * kLine) {
    for (size_t at = 0; at < kBytes; at += kLine) __builtin_prefetch(static_cast<const uint8_t*>(from) + at, kToWrite);
    return;
  }
  auto first = reinterpret_cast<uintptr_t>(from) & ~(kLine - 1);
  auto last = reinterpret_cast<uintptr_t>(from) + (bytes < kMostLines * kLine ? bytes : kMostLines * kLine);
  for (uintptr_t line = first; line < last; line += kLine) __builtin_prefetch(reinterpret_cast<void*>(line), kToWrite);
}

template <size_t kBytes = 0>
void prefetch_lines_to_write(const void* from, size_t bytes) {
  prefetch_lines<kBytes, 1>(from, bytes);
}

}  // namespace springtide
