// Tests that a slot copied part by part equals a copy made at one moment, whatever happens between the parts.
#include "slots/slot_copy.h"

#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "base/half.h"
#include "store/store.h"
#include "testing/check.h"
#include "testing/cluster.h"

namespace springtide::slot_copy_test {

namespace {

constexpr TableId kTables = 3;

StoreOptions small() { return {kSlots, 7, uint64_t{256} << 20, 1}; }

// The content of an image, independent of the order of its rows.
struct Said {
  bool full = true;
  uint64_t clock = 0;
  std::vector<SampleRun> identities;
  std::map<std::pair<TableId, uint64_t>, std::string> entries;  // rows and candidates
  std::map<std::pair<TableId, uint64_t>, int> gone;
  bool operator==(const Said&) const = default;
};

template <class T>
std::string text(const Column<T>& column, size_t i, size_t width = 1) {
  return {reinterpret_cast<const char*>(column.at) + i * width * sizeof(T), width * sizeof(T)};
}

Said said(std::span<const uint8_t> bytes) {
  const SlotImage image = decode(bytes);
  Said all{image.full, image.clock, image.identities.runs(), {}, {}};
  for (const TableImage& t : image.tables) {
    for (size_t i = 0; i < t.rows.size(); ++i) {
      const std::string row = "row" + text(t.row_ages, i) + text(t.weights, i, t.dim * bytes_of(t.dtype)) +
                              text(t.state, i, size_t{t.state_floats} * 4);
      CHECK(all.entries.emplace(std::pair{t.id, t.rows[i]}, row).second);
    }
    for (size_t i = 0; i < t.waiting.size(); ++i) {
      const std::string one = "waits" + text(t.waiting_ages, i) + text(t.waiting_counts, i);
      CHECK(all.entries.emplace(std::pair{t.id, t.waiting[i]}, one).second);
    }
    for (size_t i = 0; i < t.gone.size(); ++i) ++all.gone[{t.id, t.gone[i]}];
  }
  return all;
}

std::vector<uint8_t> bytes_of_copy(SlotCopy& copy, size_t count = 1000) {
  std::vector<uint8_t> all;
  while (copy.given() != copy.size()) {
    const auto some = copy.next(count);
    all.insert(all.end(), some.begin(), some.end());
  }
  all.insert(all.end(), copy.identities().begin(), copy.identities().end());
  std::ranges::copy(copy.signature(), all.begin());
  return all;
}

// A store with all kinds of random changes.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed), store(small()) {
    const std::array<uint32_t, 4> dims{1, 8, 16, 33};
    for (TableId id = 0; id < kTables; ++id) {
      TableSpec t = spec(id, dims[pick(4)], static_cast<OptimKind>(pick(6)));
      t.dtype = static_cast<DType>(pick(3));
      t.min_count = static_cast<uint32_t>(pick(3));
      t.ttl = pick(2) * 5;
      t.capacity_rows = pick(3) == 0 ? kSlots * 150 : 0;
      store.declare(t);
      hyper_.push_back({.table = id, .lr = 0.1f, .weight_decay = 0.01f, .step = 1});
    }
  }

  uint64_t pick(uint64_t below) { return random_() % below; }

  void push(size_t count) {
    std::vector<TableId> tables;
    std::vector<Key> keys;
    for (size_t i = 0; i < count; ++i) {
      tables.push_back(static_cast<TableId>(pick(kTables)));
      keys.push_back(static_cast<Key>(pick(40'000)));
    }
    std::vector<float> floats(store.row_floats(tables));
    for (float& x : floats) x = static_cast<float>(pick(100)) / 64 - 0.5f;
    const RowRun run{keys.size(), floats.data()};
    const BatchRange batch{0, shard_, batches_++, 1};
    store.push_once({tables, keys, {&run, 1}}, hyper_, clock_ += pick(2), false, {{&batch, 1}, {}});
  }

  // Makes a random change to the slot. Changes that are rare in reality are rare here too.
  void disturb(uint32_t slot) {
    const uint64_t what = pick(40);
    if (what < 24) return push(pick(3000));
    if (what < 27) return static_cast<void>(store.evict(clock_ += pick(3)));
    if (what < 29) return static_cast<void>(store.cut());
    if (what == 29) return store.clear_slot(slot);
    if (what == 30) return store.import_slot(store.export_slot(slot));
    if (what == 31) return store.import_slot(store.export_slot(slot, store.cut()));
    if (what == 32) ++shard_;
  }

 private:
  std::mt19937_64 random_;
  std::vector<TableHyper> hyper_;
  uint64_t clock_ = 0;
  uint64_t batches_ = 0;
  uint32_t shard_ = 0;

 public:
  Store store;
};

}  // namespace

TEST(a_copy_in_parts_is_the_slot_at_the_moment_of_its_last_part) {
  size_t in_parts = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    World world(seed);
    SlotCopy copy;
    uint64_t cut = 0;
    for (int i = 0; i < 4; ++i) world.push(15'000);
    for (int round = 0; round < 4; ++round) {
      const auto slot = static_cast<uint32_t>(world.pick(kSlots));
      const uint64_t since = world.pick(2) == 0 ? 0 : cut;
      const size_t part = 200 + world.pick(20'000);
      size_t calls = 1;
      for (; !world.store.copy_slot(slot, since, copy, part); ++calls) world.disturb(slot);
      in_parts += calls > 1 ? 1 : 0;
      CHECK(said(bytes_of_copy(copy)) == said(world.store.export_slot(slot, since)));
      if (world.pick(2) == 0) cut = world.store.cut();
      world.push(world.pick(3000));
    }
  }
  CHECK(in_parts > 40);
}

TEST(a_copy_that_was_given_up_does_no_harm_to_the_next) {
  World world(3);
  SlotCopy copy;
  for (int i = 0; i < 4; ++i) world.push(15'000);
  CHECK(!world.store.copy_slot(5, 0, copy, 1000));
  for (const uint32_t slot : {6u, 5u}) {
    world.push(3000);
    while (!world.store.copy_slot(slot, 0, copy, 1000)) world.push(100);
    CHECK(said(bytes_of_copy(copy)) == said(world.store.export_slot(slot)));
  }
  CHECK(world.store.copy_slot(5, 0, copy, SIZE_MAX));
}

// Every push adds one to all rows, so the value of a row is its number of batches.
TEST(copies_made_while_others_train_have_rows_and_batches_of_one_moment) {
  Store store(small());
  store.declare(spec(0, 16, OptimKind::sgd));
  constexpr size_t kKeys = 20'000;
  const std::vector<TableId> tables(kKeys, 0);
  const std::vector<TableHyper> hyper{{.table = 0, .lr = 1.0f}};
  std::vector<float> ones(kKeys * 16, -1.0f);
  std::vector<Key> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = static_cast<Key>(i);
  const RowRun run{kKeys, ones.data()};
  const auto train = [&](uint32_t shard, uint64_t first) {
    const BatchRange batch{0, shard, first, 1};
    store.push_once({tables, keys, {&run, 1}}, hyper, first, true, {{&batch, 1}, {}});
  };
  train(0, 0);
  std::atomic<bool> over{false};
  std::vector<std::thread> trainers;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    trainers.emplace_back([&, shard] {
      for (uint64_t first = 1; !over; ++first) train(shard, first);
    });
  }
  SlotCopy copy;
  uint64_t between = 0;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      while (!store.copy_slot(slot, 0, copy, 2000)) ++between;
      const std::vector<uint8_t> bytes = bytes_of_copy(copy, SIZE_MAX);
      const SlotImage image = decode(bytes);
      uint64_t batches = 0;
      for (const SampleRun& run : image.identities.runs()) batches += run.end - run.first;
      for (const TableImage& t : image.tables) {
        const Column<float> weights{t.weights.at, t.weights.size() / 4};
        size_t right = 0;
        for (size_t i = 0; i < weights.size(); ++i) right += weights[i] == static_cast<float>(batches);
        CHECK(right == weights.size());
      }
    }
  }
  over = true;
  for (std::thread& trainer : trainers) trainer.join();
  CHECK(between > kSlots);
}

}  // namespace springtide::slot_copy_test
