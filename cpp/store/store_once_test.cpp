// Tests pushes by identity into a real store: each is applied once per slot, from many threads, while slots are copied.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/hash.h"
#include "store/store.h"
#include "testing/check.h"

namespace springtide::store_once_test {

namespace {

constexpr uint32_t kSlots = 128;
constexpr Key kKeys = 2000;
constexpr uint32_t kShard = 240;  // samples

struct Tables {
  explicit Tables(uint32_t threads = 1) : store({kSlots, 7, uint64_t{256} << 20, threads}) {
    TableSpec spec;
    spec.name = "counts";
    spec.dim = 2;
    store.declare(spec);
    for (Key key = 0; key < kKeys; ++key) keys.push_back(key);
    tables.assign(kKeys, 0);
    grads.assign(2 * kKeys, -1.0f);
  }
  // Pushes every key once, with the identity of one batch.
  OnceStats push(uint32_t shard, uint64_t batch, std::span<const uint8_t> covers = {}, uint64_t batches = 1) {
    const BatchRange range{kShard, shard, batch * 4, batches * 4};
    const std::vector<RowRun> runs{{700, grads.data()}, {kKeys - 700, grads.data() + 1400}};
    const TableHyper plain{.table = 0, .lr = 1.0f};
    return store.push_once({tables, keys, runs}, {&plain, 1}, 0, true, {{&range, 1}, covers});
  }
  std::vector<float> rows() {
    std::vector<float> out(2 * kKeys);
    store.pull(tables, keys, out.data());
    return out;
  }
  bool all_rows_are(float wanted) {
    for (float value : rows())
      if (value != wanted) return false;
    return true;
  }
  Store store;
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> grads;
};

uint32_t slot_of_key(Key key) { return slot_of(hash_key(0, key), kSlots); }

}  // namespace

TEST(a_push_is_applied_once_and_its_copies_are_skipped) {
  for (uint32_t threads : {1u, 3u}) {
    Tables t(threads);
    CHECK(t.push(1, 0).applied == kKeys);
    const OnceStats again = t.push(1, 0);
    CHECK(again.applied == 0 && again.had_keys == kKeys);
    CHECK(t.push(1, 2).applied == kKeys);
    // this batch comes after its successor, because applied batches are a set, not a high-water mark
    CHECK(t.push(1, 1).applied == kKeys);
    CHECK(t.all_rows_are(3));
    CHECK(t.store.identity_stats().sets == kStripes);
    CHECK(t.store.identity_stats().runs == kStripes);
  }
}

TEST(an_empty_push_is_remembered_by_slots_without_keys) {
  Tables t;
  const BatchRange range{0, 1, 0, 4};
  t.store.push_once({}, {}, 0, true, {{&range, 1}, {}});
  CHECK(t.push(1, 0).applied == 0);
  CHECK(t.all_rows_are(0));
}

TEST(a_push_reaches_only_the_slots_it_speaks_for) {
  Tables t;
  std::vector<uint8_t> even(kSlots), odd(kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) (slot % 2 == 0 ? even : odd)[slot] = 1;
  const OnceStats first = t.push(1, 0, even);
  CHECK(first.applied + first.foreign_keys == kKeys && first.foreign.size() == kSlots / 2);
  for (uint16_t slot : first.foreign) CHECK(slot % 2 == 1);
  const std::vector<float> rows = t.rows();
  for (Key key = 0; key < kKeys; ++key) CHECK(rows[2 * key] == (slot_of_key(key) % 2 == 0 ? 1.0f : 0.0f));
  CHECK(t.push(1, 0, odd).applied == first.foreign_keys);
  CHECK(t.all_rows_are(1));
  CHECK(t.store.identity_stats().sets == kStripes);
}

TEST(a_push_that_a_slot_has_in_part_is_not_applied_there) {
  Tables t;
  std::vector<uint8_t> first(kSlots);
  first[0] = 1;
  t.push(1, 0, first);
  const OnceStats both = t.push(1, 0, {}, 2);
  CHECK(both.torn == std::vector<uint16_t>{0});
  const std::vector<float> rows = t.rows();
  for (float row : rows) CHECK(row == 1.0f);
  const BatchRange summed{0, 1, 0, 8};
  CHECK(describe_torn(t.store, {&summed, 1}, both.torn).find("the same batches") != std::string::npos);
  const BatchRange grid[] = {{0, 1, 0, 4}, {0, 1, 4, 4}};
  CHECK(describe_torn(t.store, grid, both.torn).find("cannot be split") != std::string::npos);
}

TEST(the_set_travels_with_the_slot_and_goes_with_it) {
  Tables a, b;
  a.push(1, 0);
  a.push(3, 0, {}, 60);
  for (uint32_t slot = 0; slot < kSlots; ++slot) b.store.import_slot(a.store.export_slot(slot));
  CHECK(b.push(1, 0).applied == 0 && b.push(3, 0).applied == 0);
  CHECK(b.store.identity_stats().sets == kStripes);
  b.store.clear_slot(5);
  CHECK(b.store.applied(5).runs().empty());
  const OnceStats again = b.push(1, 0);
  CHECK(again.applied + again.had_keys == kKeys && again.applied != 0);
}

TEST(shards_that_are_through_are_skipped_still_and_take_no_room) {
  Tables t;
  for (uint32_t shard = 0; shard < 50; ++shard) t.push(shard, 1, {}, 59);
  CHECK(t.store.identity_stats().runs == 50 * kStripes);
  const size_t image = t.store.export_slot(0).size();
  for (uint32_t shard = 50; shard-- > 0;) t.push(shard, 0);
  CHECK(t.store.identity_stats().runs == kStripes);
  CHECK(t.store.export_slot(0).size() == image - 49 * sizeof(SampleRun));
  for (uint32_t shard = 0; shard < 50; ++shard) CHECK(t.push(shard, shard % 60).applied == 0);
  CHECK(t.all_rows_are(100));
}

TEST(pushes_of_one_identity_at_once_apply_once) {
  Tables t(2);
  constexpr int kThreads = 4, kBatches = 30;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&t, i] {
      std::mt19937_64 random(static_cast<uint64_t>(i));
      std::vector<uint64_t> order(kBatches);
      for (size_t b = 0; b < kBatches; ++b) order[b] = b;
      std::shuffle(order.begin(), order.end(), random);
      for (uint64_t batch : order) t.push(1, batch);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(t.all_rows_are(kBatches));
  CHECK(t.store.identity_stats().runs == kStripes);
}

// Whenever the copy is made, its rows and its set of batches match. When the copy is imported and everything is pushed
// again, every batch is applied once.
TEST(a_copy_taken_while_pushes_run_has_rows_and_set_of_one_moment) {
  Tables t;
  constexpr uint64_t kBatches = 60;
  std::atomic<bool> over{false};
  std::thread pusher([&] {
    for (uint64_t batch = 0; batch < kBatches; ++batch) t.push(1, batch);
    over = true;
  });
  std::mt19937_64 random(3);
  std::vector<std::vector<uint8_t>> copies(kSlots);
  do {
    const auto slot = static_cast<uint32_t>(random() % kSlots);
    copies[slot] = t.store.export_slot(slot);
  } while (!over);
  pusher.join();
  Tables back;
  for (const auto& copy : copies)
    if (!copy.empty()) back.store.import_slot(copy);
  for (uint64_t batch = 0; batch < kBatches; ++batch) back.push(1, batch);
  CHECK(back.all_rows_are(kBatches));
}

}  // namespace springtide::store_once_test
