// Tests records of TLS 1.3: the keys equal those of the standard's example, and changed records are rejected.
#include "net/tls_records.h"

#include <algorithm>
#include <string>
#include <vector>

#include "testing/check.h"

namespace springtide::tls_records_test {

namespace {

template <size_t N>
std::array<uint8_t, N> hex(const std::string& text) {
  std::array<uint8_t, N> made{};
  for (size_t i = 0; i < N; ++i) made[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return made;
}

const std::string kSecret = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";

struct Pair {
  RecordCipher seals{hex<32>(kSecret), RecordCipher::Way::seals};
  RecordCipher opens{hex<32>(kSecret), RecordCipher::Way::opens};
  std::vector<uint8_t> record = std::vector<uint8_t>(kSealed);
  std::vector<uint8_t> text = std::vector<uint8_t>(kLongest);
  size_t bytes = 0;
  RecordKind kind{};

  size_t seal(const std::vector<uint8_t>& from, RecordKind as = RecordKind::data) {
    return seals.seal(as, from.data(), from.size(), record.data());
  }
  bool open() { return opens.open(record.data(), text.data(), bytes, kind); }
};

}  // namespace

TEST(keys_are_those_of_the_handshake_in_rfc_8448) {
  TlsSecrets told;
  told.note(("CLIENT_TRAFFIC_SECRET_0 " + std::string(64, 'a') + " " + kSecret).c_str());
  told.note("SERVER_TRAFFIC_SECRET_0 aa 00");  // too short: of another suite
  told.note("EXPORTER_SECRET");
  CHECK(told.has_caller && told.caller == hex<32>(kSecret) && !told.has_listener);
  const RecordKey key = record_key(told.caller);
  CHECK(key.key == hex<16>("9f02283b6c9c07efc26bb9f2ac92e356"));
  CHECK(key.nonce == hex<12>("cf782b88dd83549aadf1e984"));
}

TEST(records_come_out_as_they_went_in_one_after_the_other) {
  Pair pair;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{15}, size_t{100}, kRecord}) {
    std::vector<uint8_t> sent(size, static_cast<uint8_t>(size));
    CHECK(pair.seal(sent) == size + 22 && pair.open());
    CHECK(pair.bytes == size && pair.kind == RecordKind::data);
    CHECK(std::equal(sent.begin(), sent.end(), pair.text.begin()));
  }
  pair.seals.take_next_key();
  pair.seal({1, 2});
  CHECK(!pair.open());
  Pair other;
  other.seals.take_next_key();
  other.opens.take_next_key();
  other.seal({1, 2}, RecordKind::alert);
  CHECK(other.open() && other.kind == RecordKind::alert && other.bytes == 2);
}

TEST(a_record_that_was_changed_left_out_or_repeated_is_refused) {
  const std::vector<uint8_t> sent(40, 7);
  for (size_t at = 0; at < sent.size() + 22; ++at) {
    Pair pair;
    pair.seal(sent);
    pair.record[at] ^= 1;
    CHECK(!pair.open());
  }
  Pair pair;
  pair.seal(sent);
  CHECK(pair.open() && !pair.open());
  Pair gap;
  gap.seal(sent);
  gap.seal(sent);
  CHECK(!gap.open());
}

TEST(padding_is_taken_off) {
  Pair pair;
  // the text, its kind, and two zeros; the kind that `seal` adds is also a zero
  pair.seal({5, 6, static_cast<uint8_t>(RecordKind::data), 0, 0}, static_cast<RecordKind>(0));
  CHECK(pair.open() && pair.kind == RecordKind::data && pair.bytes == 2 && pair.text[1] == 6);
}

}  // namespace springtide::tls_records_test
