// Envelopes of records and their checksums: known values, both ways to compute checksums, and records outside the
// payload.
#include "batch/envelope.h"

#include <random>
#include <string>
#include <vector>

#include "base/types.h"
#include "testing/check.h"

namespace springtide::envelope_test {

namespace {

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST(checksums_are_those_that_everyone_has) {
  CHECK(crc32(bytes_of("123456789")) == 0xCBF43926U);
  CHECK(crc32_by_tables(bytes_of("123456789")) == 0xCBF43926U);
  CHECK(crc32({}) == 0U);
}

TEST(the_instruction_and_the_tables_agree) {
  std::mt19937 chance(7);
  std::vector<uint8_t> bytes(300);
  for (auto& one : bytes) one = static_cast<uint8_t>(chance());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); ++size) {
      const std::span<const uint8_t> part{bytes.data() + begin, size};
      CHECK(crc32(part) == crc32_by_tables(part));
    }
  }
}

std::vector<uint8_t> sealed(const std::string& body, uint64_t event_us) {
  std::vector<uint8_t> rest(8);
  for (size_t i = 0; i < 8; ++i) rest[i] = static_cast<uint8_t>(event_us >> (8 * i));
  rest.insert(rest.end(), body.begin(), body.end());
  const uint32_t crc = crc32(rest);
  std::vector<uint8_t> all{0xF5, 'S', 'T', 1};
  for (size_t i = 0; i < 4; ++i) all.push_back(static_cast<uint8_t>(crc >> (8 * i)));
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

TEST(each_record_is_bare_whole_or_damaged) {
  auto broken = sealed("two", 5);
  broken.back() ^= 1;
  std::vector<uint8_t> payload;
  std::vector<int64_t> starts;
  std::vector<int64_t> ends;
  for (const auto& one : {sealed("one", 1234567), bytes_of("{}"), broken, sealed("", 9)}) {
    starts.push_back(static_cast<int64_t>(payload.size()));
    payload.insert(payload.end(), one.begin(), one.end());
    ends.push_back(static_cast<int64_t>(payload.size()));
  }
  std::vector<uint8_t> states(4, 9);
  std::vector<int64_t> event_us(4, 9);
  const auto found = open_envelopes(payload, starts, ends, states.data(), event_us.data());
  CHECK(found.bare == 1 && found.damaged == 1);
  CHECK((states == std::vector<uint8_t>{kWhole, kBare, kDamaged, kWhole}));
  CHECK((event_us == std::vector<int64_t>{1234567, 0, 5, 9}));
}

TEST(records_beyond_the_payload_are_refused) {
  const auto payload = bytes_of("0123456789");
  uint32_t sum = 0;
  for (const auto& [start, end] : {std::pair<int64_t, int64_t>{-1, 3}, {4, 2}, {0, 11}}) {
    CHECK_THROWS(BadInput, crc32_each(payload, std::vector<int64_t>{start}, std::vector<int64_t>{end}, &sum));
  }
}

}  // namespace

}  // namespace springtide::envelope_test
