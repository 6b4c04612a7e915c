// A fuzz target is one executable: FUZZ(bytes) { ... } reads any bytes, and HOLDS(...) says what must be true of them.
// With clang's libFuzzer the executable searches for inputs that break this; with any other compiler it replays the
// files of the folders that it is given. Corpus: tests/fuzz/corpus. How to run: docs/design/formats.md.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

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

inline void holds(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
  std::abort();
}

}  // namespace springtide::fuzz

#define HOLDS(...) springtide::fuzz::holds(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

#define FUZZ(bytes)                                                         \
  static void fuzz_one(springtide::fuzz::Bytes bytes);                      \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    fuzz_one({data, size});                                                 \
    return 0;                                                               \
  }                                                                         \
  FUZZ_MAIN                                                                 \
  static void fuzz_one(springtide::fuzz::Bytes bytes)

#ifdef SPRINGTIDE_LIBFUZZER
#define FUZZ_MAIN
#else
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace springtide::fuzz {

inline int replay(int count, char** folders) {
  int files = 0;
  for (int i = 1; i < count; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(folders[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()), content.size());
      ++files;
    }
  }
  std::printf("ok   %d inputs\n", files);
  return files == 0;
}

}  // namespace springtide::fuzz

#define FUZZ_MAIN \
  int main(int count, char** folders) { return springtide::fuzz::replay(count, folders); }
#endif
