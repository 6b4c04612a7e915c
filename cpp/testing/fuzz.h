// A fuzz target: FUZZ(bytes) { ... } reads any bytes, and HOLDS(...) says what must be true of them. With clang's
// libFuzzer each target is an executable that searches for inputs that break this. With any other compiler the targets
// replay the files of a folder, as in `native_tests wire_fuzz tests/fuzz/corpus/wire_fuzz`. Corpus: tests/fuzz/corpus.
// How to run: docs/design/formats.md.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>
#include <string_view>

#include "testing/check.h"

namespace springtide::fuzz {

using Bytes = std::span<const uint8_t>;

// Takes a value from the front of the bytes; zero if there are too few.
template <class T>
T take(Bytes& bytes) {
  T value{};
  if (bytes.size() < sizeof value) {
    bytes = {};
    return value;
  }
  __builtin_memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return value;
}

using Target = void (*)(Bytes);

// Targets by the name of their file.
inline std::map<std::string_view, Target>& targets() {
  static std::map<std::string_view, Target> all;
  return all;
}
struct Register {
  Register(std::string_view file, Target target) { targets()[checks::stem(file)] = target; }
};

inline void holds(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
  std::abort();
}

}  // namespace springtide::fuzz

#define HOLDS(...) springtide::fuzz::holds(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

#ifdef SPRINGTIDE_LIBFUZZER
#define FUZZ(bytes)                                                         \
  static void fuzz_one(springtide::fuzz::Bytes bytes);                      \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    fuzz_one({data, size});                                                 \
    return 0;                                                               \
  }                                                                         \
  static void fuzz_one(springtide::fuzz::Bytes bytes)
#else
#define FUZZ(bytes)                                                        \
  static void fuzz_one(springtide::fuzz::Bytes bytes);                     \
  static const springtide::fuzz::Register registered_(__FILE__, fuzz_one); \
  static void fuzz_one(springtide::fuzz::Bytes bytes)
#endif
