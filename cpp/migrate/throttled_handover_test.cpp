// Tests whole slots in one frame, by value and by reference. Reading the memory of a process gives the same rows as
// sending them, and torn, foreign or missing data is refused.

#include <unistd.h>

#include "migrate/slot_stream.h"
#include "slots/slot_batch.h"
#include "testing/check.h"
#include "testing/cluster.h"

namespace springtide::throttled_handover_test {

namespace {

// A store with rows, with keys that wait for admission, and with an optimizer that has a number in addition to its
// vectors.
std::unique_ptr<Store> filled() {
  auto store = std::make_unique<Store>(StoreOptions{.slots = kSlots, .seed = 5});
  TableSpec plain = table(0, 4), choosy = table(1, 9);
  plain.optim.kind = OptimKind::adam;
  choosy.min_count = 2;
  store->declare(plain);
  store->declare(choosy);
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> grads;
  for (Key key = 0; key < 3000; ++key) {
    tables.push_back(static_cast<TableId>(key % 2));
    keys.push_back(key);
    grads.insert(grads.end(), key % 2 == 0 ? 4 : 9, static_cast<float>(key) / 1000);
  }
  const std::vector<TableHyper> hyper = {{.table = 0, .lr = 0.1f, .step = 1}, {.table = 1, .lr = 0.1f, .step = 1}};
  store->push(tables, keys, grads.data(), hyper, 7, true);
  return store;
}

}  // namespace

TEST(what_is_read_out_of_a_process_is_the_image_it_would_have_sent) {
  const auto store = filled();
  for (uint16_t slot = 0; slot < kSlots; ++slot) {
    store->close_slot(slot);
    SlotReference said;
    store->refer(slot, said);
    std::vector<uint8_t> bytes;
    encode(said, bytes);
    ImageWriter image;
    read_slot(getpid(), decode_reference(bytes), image);
    const std::vector<uint8_t> sent = store->export_slot(slot);
    CHECK(std::equal(sent.begin(), sent.end(), image.bytes().begin(), image.bytes().end()));
  }
}

TEST(an_open_slot_has_no_reference_and_a_closed_one_keeps_its_rows_where_they_are) {
  auto store = std::make_unique<Store>(StoreOptions{.slots = kSlots, .seed = 5});
  TableSpec spec = table(0, 4);
  spec.ttl = 10;
  store->declare(spec);
  const std::vector<TableId> tables = {0};
  const std::vector<Key> keys = {1};
  const std::vector<float> grads(4, 1.0f);
  const std::vector<TableHyper> hyper = {{.table = 0, .lr = 0.1f, .step = 1}};
  store->push(tables, keys, grads.data(), hyper, 1, true);
  SlotReference said;
  CHECK_THROWS(BadInput, store->refer(0, said));
  for (uint32_t slot = 0; slot < kSlots; ++slot) store->close_slot(slot);
  CHECK(store->evict(1000) == 0);
  for (uint32_t slot = 0; slot < kSlots; ++slot) store->open_slot(slot);
  CHECK(store->evict(1001) == 1);
}

TEST(a_reference_or_a_batch_that_is_torn_is_told_from_one_that_is_not) {
  const auto store = filled();
  store->close_slot(3);
  SlotReference said;
  store->refer(3, said);
  BatchWriter batch(true);
  batch.begin(3, 77);
  encode(said, batch.bytes());
  batch.end();
  const std::vector<uint8_t> whole = batch.bytes();
  const SlotBatch back = decode_batch(whole);
  CHECK(back.by_reference && back.parts.size() == 1 && back.parts[0].slot == 3 && back.parts[0].transfer == 77);
  const std::span<const uint8_t> reference = back.parts[0].bytes;
  CHECK(decode_reference(reference).tables.size() == said.tables.size());
  for (size_t bytes = 0; bytes < reference.size(); bytes += 7) {
    CHECK_THROWS(BadInput, decode_reference(reference.first(bytes)));
  }
  for (size_t bytes = 2; bytes < whole.size(); bytes += 11) {
    CHECK_THROWS(BadInput, decode_batch(std::span(whole).first(bytes)));
  }
  const BatchAnswer answer = decode_answer(encode(BatchAnswer{{3, 9}, "slot 4 there is not"}));
  CHECK((answer.taken == std::vector<uint16_t>{3, 9}) && answer.why == "slot 4 there is not");
  CHECK_THROWS(BadInput, decode_answer(std::vector<uint8_t>{9, 0, 0, 0, 1}));
}

TEST(rows_that_cannot_be_read_are_refused) {
  const auto store = filled();
  store->close_slot(3);
  SlotReference said;
  store->refer(3, said);
  ImageWriter image;
  CHECK_THROWS(BadInput, read_slot(INT32_MAX, said, image));
  bool any = false;
  for (TableReference& table : said.tables) {
    for (uint64_t& at : table.weights_at) at = 16, any = true;
  }
  CHECK(any);
  CHECK_THROWS(BadInput, read_slot(getpid(), said, image));
}

// The rows themselves are sent, as from another host, instead of references.
TEST(whole_slots_in_one_frame_are_the_targets_then_and_what_it_has_already_is_said_to_be_there) {
  Cluster cluster(2);
  for (const auto& store : cluster.stores) store->declare(table(0, 4));
  for (size_t s = 0; s < 2; ++s) cluster[s].set_placement(9, std::vector<uint16_t>(kSlots, 0));
  ServerOptions options;
  options.secret = kSecret;
  ServerState source(*cluster.stores[0], options);
  SlotTarget target(source, {"127.0.0.1", cluster[1].port(), 1, 5});
  const auto give = [&](const std::vector<uint16_t>& slots) {
    BatchWriter batch(false);
    for (const uint16_t slot : slots) {
      batch.begin(slot, 0);
      batch.add(cluster.stores[0]->export_slot(slot % kSlots));
      batch.end();
    }
    FrameHeader header;
    std::vector<uint8_t> body;
    target.send(Kind::own_all, 0, batch.bytes());
    CHECK(target.receive(header, body).empty());
    return decode_answer(body);
  };
  CHECK((give({3, 9}).taken == std::vector<uint16_t>{3, 9}));
  CHECK((cluster[1].owned() == std::vector<uint16_t>{3, 9}));
  const BatchAnswer again = give({9, 5, static_cast<uint16_t>(kSlots)});
  CHECK((again.taken == std::vector<uint16_t>{9, 5}));
  CHECK(again.why.find("there is not") != std::string::npos);
}

}  // namespace springtide::throttled_handover_test
