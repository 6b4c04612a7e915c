// Hints for compiler and processor: prefetching, branch-free selects, clones per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Compiles a function for several instruction sets; the loader selects one when the program starts. The choice depends
// on the machine only, so results do not depend on the number of servers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SPRINGTIDE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SPRINGTIDE_CLONES
#endif

namespace springtide {

// Hides how a value was computed, so that the compiler cannot compute the value with branches. Use this function for
// values that a branch predictor cannot guess, such as which cell of a cache line holds a key.

[[gnu::always_inline]] inline unsigned branchless(unsigned value) {
  asm("" : "+r"(value));
  return value;
}

constexpr size_t kLine = 64;
// number of lines to prefetch; beyond 1 KiB the hardware prefetcher continues without help
constexpr size_t kMostLines = 16;

inline void prefetch_read(const void* at) { __builtin_prefetch(at, 0); }

// `kBytes` is the value of `bytes` if it is known at compile time, and otherwise 0. If `kBytes` is a multiple of a
// cache line, `from` must be aligned to a line.
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

// Calls `call` with the row length as a compile-time constant if the length is common, and otherwise with 0.
template <class Call>
[[gnu::always_inline]] inline auto by_dim(uint32_t dim, const Call& call) {
  switch (dim) {
    case 8:
      return call(std::integral_constant<uint32_t, 8>{});
    case 16:
      return call(std::integral_constant<uint32_t, 16>{});
    case 32:
      return call(std::integral_constant<uint32_t, 32>{});
    case 64:
      return call(std::integral_constant<uint32_t, 64>{});
    default:
      return call(std::integral_constant<uint32_t, 0>{});
  }
}

}  // namespace springtide
