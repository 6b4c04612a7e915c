// A native unit test is one executable: TEST(a_sentence) { CHECK(...); } and CHECK_MAIN at the end. The test's exit
// code is nonzero if a check failed or a test threw an exception.
#pragma once

#include <cstdio>
#include <exception>
#include <vector>

namespace springtide::checks {

struct Test {
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
  Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
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
inline int run() {
  for (const Test& test : tests()) {
    int before = failures();
    try {
      test.body();
    } catch (const std::exception& e) {
      ++failures();
      std::fprintf(stderr, "%s: threw %s\n", test.name, e.what());
    }
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", test.name);
  }
  return failures() == 0 ? 0 : 1;
}

}  // namespace springtide::checks

#define CHECK(what) springtide::checks::passes(static_cast<bool>(what), #what, __FILE__, __LINE__)
#define CHECK_THROWS(Error, ...)                                                                                      \
  springtide::checks::passes(springtide::checks::throws<Error>([&] { __VA_ARGS__; }), #__VA_ARGS__ " throws " #Error, \
                             __FILE__, __LINE__)
#define TEST(name)                                                        \
  static void name();                                                     \
  static const springtide::checks::Register register_##name(#name, name); \
  static void name()
#define CHECK_MAIN \
  int main() { return springtide::checks::run(); }
