#include "batch/distinct.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace springtide {

namespace {

constexpr int kDigitBits = 11;  // the counts of a digit fit into the L1 cache
constexpr size_t kDigits = size_t{1} << kDigitBits;
// bits to sort by; among 2^22 hashes, one in 2,000 has the same bits as another hash
constexpr int kMostSorted = 3 * kDigitBits;
// use by_slots() if there are at most this many possible values for each given integer
constexpr uint64_t kDense = 4;

// For dense values such as table ids or buckets. Every possible value has a slot, which first holds its count and then
// its index in the result.
uint64_t by_slots(std::span<const int64_t> given, uint64_t least, uint64_t range, const DistinctOut& out) {
  std::vector<uint32_t> slots(range + 1);
  for (const int64_t one : given) ++slots[static_cast<uint64_t>(one) - least];
  uint64_t found = 0;
  for (uint64_t slot = 0; slot <= range; ++slot) {
    const uint32_t count = slots[slot];
    if (count == 0) continue;
    out.values[found] = static_cast<int64_t>(least + slot);
    if (out.counts != nullptr) out.counts[found] = count;
    slots[slot] = static_cast<uint32_t>(found++);
  }
  if (out.inverse != nullptr) {
    for (size_t i = 0; i < given.size(); ++i) {
      out.inverse[i] = slots[static_cast<uint64_t>(given[i]) - least];
    }
  }
  return found;
}

using Words = std::unique_ptr<uint64_t[]>;

// Radix sort of `count` words by `bits` bits, from bit `from` on. Skips digits that are equal in all words.
Words sorted(Words words, size_t count, int from, int bits) {
  const int passes = (bits + kDigitBits - 1) / kDigitBits;
  const auto digit = [from](uint64_t word, int pass) { return word >> (from + pass * kDigitBits) & (kDigits - 1); };
  std::vector<std::array<uint32_t, kDigits>> starts(passes);
  for (size_t i = 0; i < count; ++i) {
    for (int pass = 0; pass < passes; ++pass) ++starts[pass][digit(words[i], pass)];
  }
  Words into = std::make_unique_for_overwrite<uint64_t[]>(count);
  for (int pass = 0; pass < passes; ++pass) {
    std::array<uint32_t, kDigits>& start = starts[pass];
    if (*std::max_element(start.begin(), start.end()) == count) continue;
    uint32_t next = 0;
    for (uint32_t& one : start) next += std::exchange(one, next);
    for (size_t i = 0; i < count; ++i) into[start[digit(words[i], pass)]++] = words[i];
    words.swap(into);
  }
  return words;
}

// Sorts values whose words are equal in the sorted bits. Changes both `words` and `values`.
void tell_apart(std::span<const int64_t> given, uint64_t* words, int place_bits, std::vector<int64_t>& values) {
  const uint64_t place_mask = (uint64_t{1} << place_bits) - 1;
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] == values[i - 1] || words[i] >> place_bits != words[i - 1] >> place_bits) continue;
    size_t begin = i - 1, end = i + 1;
    while (begin > 0 && words[begin - 1] >> place_bits == words[i] >> place_bits) --begin;
    while (end < values.size() && words[end] >> place_bits == words[i] >> place_bits) ++end;
    std::sort(words + begin, words + end,
              [&](uint64_t a, uint64_t b) { return given[a & place_mask] < given[b & place_mask]; });
    for (size_t j = begin; j < end; ++j) values[j] = given[words[j] & place_mask];
    i = end;
  }
}

// For sparse values such as hashes. A word contains the highest bits of a value and the value's index. Words are sorted
// by these bits, which distinguish nearly all values; tell_apart() sorts the rest.
uint64_t by_sorting(std::span<const int64_t> given, uint64_t least, uint64_t range, const DistinctOut& out) {
  const size_t count = given.size();
  const int place_bits = static_cast<int>(std::bit_width(count - 1)), bits = static_cast<int>(std::bit_width(range));
  const int kept = std::min({bits, kMostSorted, 64 - place_bits});
  const uint64_t place_mask = (uint64_t{1} << place_bits) - 1;
  Words words = std::make_unique_for_overwrite<uint64_t[]>(count);
  for (size_t i = 0; i < count; ++i) {
    words[i] = (static_cast<uint64_t>(given[i]) - least) >> (bits - kept) << place_bits | i;
  }
  words = sorted(std::move(words), count, place_bits, kept);
  std::vector<int64_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = given[words[i] & place_mask];
  if (kept < bits) tell_apart(given, words.get(), place_bits, values);
  uint64_t at = 0;  // it is unpredictable whether a value is new, so no branch below depends on it
  for (size_t i = 0; i < count; ++i) {
    at += i > 0 && values[i] != values[i - 1];
    out.values[at] = values[i];
    if (out.inverse != nullptr) out.inverse[words[i] & place_mask] = static_cast<int64_t>(at);
    // Stores how many values there are up to here; the differences are computed below.
    if (out.counts != nullptr) out.counts[at] = static_cast<int64_t>(i + 1);
  }
  for (uint64_t i = out.counts != nullptr ? at : 0; i > 0; --i) out.counts[i] -= out.counts[i - 1];
  return at + 1;
}

}  // namespace

uint64_t distinct(std::span<const int64_t> given, const DistinctOut& out) {
  if (given.empty()) return 0;
  const auto [low, high] = std::minmax_element(given.begin(), given.end());
  const uint64_t least = static_cast<uint64_t>(*low), range = static_cast<uint64_t>(*high) - least;
  const bool dense = range / kDense < given.size();
  return dense ? by_slots(given, least, range, out) : by_sorting(given, least, range, out);
}

bool is_distinct(std::span<const int64_t> given, std::span<const int64_t> values, std::span<const int64_t> inverse,
                 std::span<const int64_t> counts) {
  if (inverse.size() != given.size() || counts.size() != values.size()) return false;
  if (std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) != values.end()) return false;
  std::vector<int64_t> found(values.size());
  for (size_t i = 0; i < given.size(); ++i) {
    const auto at = static_cast<uint64_t>(inverse[i]);
    if (at >= values.size() || values[at] != given[i]) return false;
    ++found[at];
  }
  return std::equal(found.begin(), found.end(), counts.begin()) &&
         std::find(found.begin(), found.end(), 0) == found.end();
}

}  // namespace springtide
