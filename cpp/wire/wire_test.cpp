// Tests frames: encoding and decoding are inverse, and damaged frames are refused without reading past their end.
#include "wire/wire.h"

#include <cstring>
#include <random>

#include "base/sha256.h"
#include "testing/check.h"

namespace springtide::wire_test {

namespace {

FrameHeader sealed_pull(uint32_t keys) {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::pull);
  header.keys = keys;
  header.body_bytes = layout_of(header).floats;
  seal(header);
  return header;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::span<const uint8_t> bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

TEST(digests_match_published_vectors) {
  CHECK(hex(sha256(bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string key(20, '\x0b');
  CHECK(hex(hmac_sha256(bytes(key), bytes("Hi There"))) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST(a_sealed_header_is_believed_and_a_changed_bit_is_not) {
  const FrameHeader good = sealed_pull(3);
  CHECK(header_error(good, 1 << 20).empty());
  CHECK(!header_error(good, 8).empty());
  for (size_t bit = 0; bit < 8 * sizeof good; ++bit) {
    FrameHeader bad = good;
    reinterpret_cast<uint8_t*>(&bad)[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    CHECK(!header_error(bad, 1 << 20).empty());
  }
}

TEST(a_body_comes_apart_as_it_was_put_together) {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::push);
  header.keys = 2;
  const std::vector<BatchRange> batches = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const std::vector<TableHyper> hypers = {{.table = 9, .lr = 0.5f, .weight_decay = 0.25f, .step = 11}};
  const std::vector<FloatSpan> spans = {{64, 8}};
  const std::vector<uint16_t> slots = {3, 1, 4};
  std::vector<uint8_t> body = encode_prefix(header, batches, hypers, spans, slots);
  const std::vector<Key> keys = {-1, INT64_MIN};
  const std::vector<TableId> tables = {7, 65534};
  const BodyLayout at = layout_of(header);
  body.resize(at.floats + 8);
  std::memcpy(body.data() + at.keys, keys.data(), 16);
  std::memcpy(body.data() + at.tables, tables.data(), 4);
  const float floats[2] = {1.5f, -2.0f};
  std::memcpy(body.data() + at.floats, floats, 8);

  BodyView view;
  CHECK(parse_body(header, body, view).empty());
  CHECK(view.batches.size() == 2 && view.batches[1].first == 7 && view.batches[1].count == 8);
  CHECK(view.hypers.size() == 1 && view.hypers[0].table == 9 && view.hypers[0].step == 11);
  CHECK(view.spans.size() == 1 && view.spans[0].offset == 64);
  CHECK(view.slots.size() == 3 && view.slots[2] == 4);
  CHECK(view.keys[0] == -1 && view.keys[1] == INT64_MIN && view.tables[1] == 65534);
  CHECK(view.floats.size() == 2 && view.floats[1] == -2.0f);
}

TEST(counts_that_do_not_fit_are_refused) {
  std::mt19937_64 random(20261115);
  std::vector<uint8_t> body(4096);
  for (int i = 0; i < 20000; ++i) {
    FrameHeader header;
    header.kind = static_cast<uint8_t>(Kind::push);
    const int shift = static_cast<int>(random() % 32);
    header.keys = static_cast<uint32_t>(random()) >> shift;
    header.batches = static_cast<uint32_t>(random()) >> shift;
    header.hypers = static_cast<uint16_t>(random() >> 50);
    header.spans = static_cast<uint16_t>(random() >> 52);
    header.slots = static_cast<uint16_t>(random() >> 52);
    const size_t size = random() % body.size();
    BodyView view;
    if (!parse_body(header, std::span(body).first(size), view).empty()) continue;
    const auto* end = body.data() + size;
    CHECK(reinterpret_cast<const uint8_t*>(view.keys.data() + view.keys.size()) <= end);
    CHECK(reinterpret_cast<const uint8_t*>(view.tables.data() + view.tables.size()) <= end);
    CHECK(reinterpret_cast<const uint8_t*>(view.floats.data() + view.floats.size()) == end);
  }
}

TEST(tables_survive_the_trip_and_nonsense_does_not) {
  std::mt19937_64 random(20261116);
  TableSpec spec;
  spec.id = 12;
  spec.name = "clicks";
  spec.dim = 16;
  spec.dtype = DType::bf16;
  spec.init = {InitKind::normal, 0, 0.01f};
  spec.optim.kind = OptimKind::adam;
  spec.optim.decoupled_decay = true;
  spec.ttl = 1ULL << 40;
  TableSpec other;
  other.name = "";
  const std::vector<TableSpec> tables = {spec, other};
  const std::vector<uint8_t> good = encode_tables(tables);
  CHECK(decode_tables(good) == tables);
  for (size_t cut = 0; cut < good.size(); ++cut) CHECK_THROWS(BadInput, decode_tables(std::span(good).first(cut)));
  for (int i = 0; i < 5000; ++i) {
    std::vector<uint8_t> bad = good;
    for (int change = 0; change < 3; ++change) bad[random() % bad.size()] = static_cast<uint8_t>(random());
    try {
      CHECK(decode_tables(bad).size() <= 2);
    } catch (const BadInput&) {  // the usual outcome; otherwise, the result is a valid spec with other numbers
    }
  }
}

}  // namespace springtide::wire_test
