// A native unit test: TEST(a_sentence) { CHECK(...); } in a namespace with the name of its file. One executable has the
// tests of many files and runs those of the file that it is given, as in `native_tests store_test`.
#pragma once

#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

namespace springtide::checks {

struct Test {
  std::string_view file;
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
struct Register {
  Register(std::string_view file, const char* name, void (*body)()) { tests().push_back({file, name, body}); }
};
inline bool passes(bool ok, const char* what, const char* file, int line) {
  if (!ok) {
    ++failures();
    std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
  }
  return ok;
}
template <class Error, class Body>
bool throws(Body body) {
  try {
    body();
  } catch (const Error&) {
    return true;
  }
  return false;
}
// The name of a source file, without folder and extension.
constexpr std::string_view stem(std::string_view path) {
  path = path.substr(path.rfind('/') + 1);
  return path.substr(0, path.find('.'));
}
// Returns nonzero if a check failed, a test threw an exception, or the file has no tests.
inline int run(std::string_view file) {
  int found = 0;
  for (const Test& test : tests()) {
    if (stem(test.file) != file) continue;
    ++found;
    int before = failures();
    try {
      test.body();
    } catch (const std::exception& e) {
      ++failures();
      std::fprintf(stderr, "%s: threw %s\n", test.name, e.what());
    }
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", test.name);
  }
  return found > 0 && failures() == 0 ? 0 : 1;
}

}  // namespace springtide::checks

#define CHECK(what) springtide::checks::passes(static_cast<bool>(what), #what, __FILE__, __LINE__)
#define CHECK_THROWS(Error, ...)                                                                                      \
  springtide::checks::passes(springtide::checks::throws<Error>([&] { __VA_ARGS__; }), #__VA_ARGS__ " throws " #Error, \
                             __FILE__, __LINE__)
#define TEST(name)                                                                  \
  static void name();                                                               \
  static const springtide::checks::Register register_##name(__FILE__, #name, name); \
  static void name()
