// Distinct integers are ascending, with their counts and inverse, by both methods.
#include "batch/distinct.h"

#include <limits>
#include <map>
#include <random>
#include <vector>

#include "testing/check.h"

namespace springtide::distinct_test {

namespace {

void check(const std::vector<int64_t>& given) {
  std::map<int64_t, int64_t> wanted;
  for (const int64_t one : given) ++wanted[one];
  std::vector<int64_t> values(given.size()), inverse(given.size()), counts(given.size());
  const uint64_t found = distinct(given, {values.data(), inverse.data(), counts.data()});
  CHECK(found == wanted.size());
  size_t at = 0;
  for (const auto& [value, count] : wanted) {
    CHECK(values[at] == value && counts[at] == count);
    ++at;
  }
  for (size_t i = 0; i < given.size(); ++i) CHECK(values[inverse[i]] == given[i]);
  const std::span<int64_t> those(values.data(), found), often(counts.data(), found);
  CHECK(is_distinct(given, those, inverse, often));
  for (std::vector<int64_t>* part : {&values, &inverse, &counts}) {  // a change anywhere is noticed
    if (given.empty()) break;
    int64_t& changed = (*part)[given.size() % found];
    for (const int64_t wrong : {int64_t{1}, int64_t{-1}}) {
      changed = static_cast<int64_t>(static_cast<uint64_t>(changed) + static_cast<uint64_t>(wrong));
      CHECK(!is_distinct(given, those, inverse, often));
      changed = static_cast<int64_t>(static_cast<uint64_t>(changed) - static_cast<uint64_t>(wrong));
    }
  }
  std::vector<int64_t> again(given.size());
  CHECK(distinct(given, {again.data(), nullptr, nullptr}) == found);
  CHECK(again == values);
}

std::vector<int64_t> drawn(size_t count, int64_t low, int64_t high) {
  std::mt19937_64 random(count);
  std::uniform_int_distribution<int64_t> each(low, high);
  std::vector<int64_t> given(count);
  for (int64_t& one : given) one = each(random);
  return given;
}

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

}  // namespace

TEST(few_possible_values) { check(drawn(5000, -300, 900)); }
TEST(any_integers) { check(drawn(5000, kLeast, kMost)); }
TEST(a_middle_range) { check(drawn(5000, 1 << 20, 1 << 24)); }
TEST(digits_that_all_have_in_common) { check({5, 5 + (int64_t{1} << 50), 5, 9 + (int64_t{1} << 50)}); }
TEST(highest_bits_that_tell_none_apart) {
  std::vector<int64_t> given = drawn(5000, 0, 1 << 12);
  given.push_back(kMost);
  check(given);
}
TEST(the_ends_of_the_range) { check({kMost, kLeast, 0, kMost, -1, kLeast}); }
TEST(one_value_and_none) {
  check({7});
  check({7, 7, 7});
  check({});
}

}  // namespace springtide::distinct_test
