// Tests the store with several threads, and functions that Python cannot call. It is meant for the sanitizers.
#include "store/store.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/hash.h"
#include "testing/check.h"
#include "testing/cluster.h"

namespace springtide::store_test {

namespace {

StoreOptions small(uint32_t threads = 1) { return {64, 7, uint64_t{256} << 20, threads}; }

struct Batch {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> floats;
};

Batch batch(const Store& store, std::mt19937_64& random, size_t count, Key range, TableId table_count) {
  Batch b;
  for (size_t i = 0; i < count; ++i) {
    b.tables.push_back(static_cast<TableId>(random() % table_count));
    b.keys.push_back(static_cast<Key>(random() % static_cast<uint64_t>(range)));
  }
  b.floats.assign(store.row_floats(b.tables), -1.0f);
  return b;
}

const std::vector<TableHyper> kPlain{{.table = 0, .lr = 1.0f}, {.table = 1, .lr = 1.0f}};

}  // namespace

TEST(counts_are_right_whatever_the_threads) {
  Store store(small(3));
  store.declare(spec(0, 8, OptimKind::sgd));
  store.declare(spec(1, 5, OptimKind::sgd));
  constexpr int kThreads = 4, kRounds = 6;
  constexpr Key kRange = 3000;
  std::vector<std::vector<uint64_t>> seen(kThreads, std::vector<uint64_t>(2 * kRange));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int round = 0; round < kRounds; ++round) {
        Batch b = batch(store, random, 5000, kRange, 2);
        store.push(b.tables, b.keys, b.floats.data(), kPlain, 0, false);
        store.pull(b.tables, b.keys, b.floats.data());
        for (size_t i = 0; i < b.keys.size(); ++i) ++seen[t][b.tables[i] * kRange + b.keys[i]];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TableId table : {TableId{0}, TableId{1}}) {
    std::vector<TableId> tables(kRange, table);
    std::vector<Key> keys(kRange);
    for (Key k = 0; k < kRange; ++k) keys[k] = k;
    std::vector<float> rows(store.row_floats(tables));
    store.pull(tables, keys, rows.data());
    size_t dim = store.spec(table).dim;
    for (Key k = 0; k < kRange; ++k) {
      uint64_t wanted = 0;
      for (const auto& counts : seen) wanted += counts[table * kRange + k];
      CHECK(rows[k * dim] == static_cast<float>(wanted) && rows[k * dim + dim - 1] == static_cast<float>(wanted));
    }
  }
}

TEST(everything_at_once_is_free_of_races) {
  Store store(small(2));
  TableSpec aged = spec(0, 4, OptimKind::adam);
  aged.ttl = 3;
  aged.min_count = 2;
  TableSpec bounded = spec(1, 16, OptimKind::adagrad);
  bounded.capacity_rows = 1000;
  store.declare(aged);
  store.declare(bounded);
  std::atomic<uint64_t> clock{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int round = 0; round < 10; ++round) {
        Batch b = batch(store, random, 4500, 20000, 2);
        store.push(b.tables, b.keys, b.floats.data(), kPlain, ++clock, false);
        store.pull(b.tables, b.keys, b.floats.data());
      }
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; round < 5; ++round) {
      uint64_t cut = store.cut();
      for (uint32_t slot = 0; slot < store.slots(); ++slot) {
        std::vector<uint8_t> image = store.export_slot(slot);
        store.dirty_rows(slot, cut);
        store.load(slot);
        if (slot % 16 == 3) store.import_slot(image);
        if (slot % 16 == 5) store.clear_slot(slot);
      }
      store.evict(++clock);
    }
  });
  threads.emplace_back([&] {
    for (TableId id = 2; id < 30; ++id) store.declare(spec(id, id, OptimKind::ftrl));
  });
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < store.slots(); ++slot) sum += store.load(slot).rows;
  CHECK(sum == store.rows());
  CHECK(store.rows(1) <= 64 * 16);  // a share is ceil(1000 / 64) = 16 rows per slot
}

TEST(equal_hashes_of_different_tables_are_told_apart) {
  Store store(small());
  constexpr TableId kTables = 40;
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<TableHyper> hyper;
  uint64_t hash = hash_key(0, 12345);
  for (TableId id = 0; id < kTables; ++id) {
    store.declare(spec(id, 1 + id % 3, OptimKind::sgd));
    tables.push_back(id);
    keys.push_back(key_of(id, hash));
    hyper.push_back({.table = id, .lr = 1.0f});
    CHECK(hash_key(id, keys.back()) == hash);
  }
  std::vector<float> grads;
  for (TableId id = 0; id < kTables; ++id) grads.insert(grads.end(), 1 + id % 3, -static_cast<float>(id + 1));
  store.push(tables, keys, grads.data(), hyper, 0, true);
  std::vector<float> rows(grads.size());
  store.pull(tables, keys, rows.data());
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == -grads[i]);
  CHECK(store.rows() == kTables);
}

TEST(any_damage_to_an_image_is_noticed_and_changes_nothing) {
  Store store(small());
  store.declare(spec(0, 3, OptimKind::adagrad));
  std::vector<Key> keys;
  for (Key k = 0; k < 300; ++k) keys.push_back(k * k - 1000);
  std::vector<TableId> tables(keys.size(), 0);
  std::vector<float> grads(keys.size() * 3, 0.5f);
  const RowRun run{keys.size(), grads.data()};
  const std::vector<BatchRange> batches{{0, 1, 0, 8}, {0, 1, 12, 4}, {9, 7, 0, 9}};
  store.push_once({tables, keys, {&run, 1}}, std::span(kPlain).first(1), 0, true, {batches, {}});
  uint32_t slot = slot_of(hash_key(0, keys[0]), 64);
  std::vector<uint8_t> image = store.export_slot(slot);
  std::mt19937_64 random(3);
  for (int i = 0; i < 400; ++i) {
    std::vector<uint8_t> torn = image;
    if (i % 3 == 0) {
      torn.resize(random() % torn.size());
    } else {
      torn[random() % torn.size()] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    CHECK_THROWS(BadInput, store.import_slot(torn));
  }
  CHECK(store.export_slot(slot) == image);
  CHECK(store.rows() == keys.size());
  // even with a correct checksum, which somebody could forge, an image is either refused or has sane sizes
  size_t refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::vector<uint8_t> forged = image;
    if (i % 4 == 0) forged.resize(kUnsummed + random() % (forged.size() - kUnsummed));
    for (size_t hits = 1 + random() % 3; hits != 0; --hits) {
      // the first bytes contain most of the sizes
      const size_t at = std::min<size_t>(kUnsummed + random() % (i % 2 == 0 ? 100 : 10'000), forged.size() - 1);
      forged[at] = static_cast<uint8_t>(random() % 3 == 0 ? 0xff : random());
    }
    Checksum sum;
    sum.add(std::span(forged).subspan(kUnsummed));
    std::ranges::copy(signature(forged.size(), sum), forged.begin());
    try {
      const SlotImage sane = decode(forged);
      CHECK(sane.identities.runs().size() * sizeof(SampleRun) < forged.size() && sane.tables.size() < forged.size());
    } catch (const BadInput&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

TEST(rows_that_are_said_to_be_ready_are_those_of_a_plain_pull) {
  for (const uint32_t threads : {1u, 3u}) {
    Store store(small(threads));
    store.declare(spec(0, 8, OptimKind::sgd));
    store.declare(spec(1, 5, OptimKind::sgd));
    std::mt19937_64 random(4);
    for (const size_t count : {0, 10, 3000, 20000}) {
      Batch b = batch(store, random, count, 1 << 30, 2);
      if (count != 10) {  // in the form in which clients send keys
        std::vector<std::pair<uint64_t, size_t>> order;
        for (size_t i = 0; i < count; ++i) order.emplace_back(hash_key(b.tables[i], b.keys[i]), i);
        std::sort(order.begin(), order.end());
        const Batch given = b;
        for (size_t i = 0; i < count; ++i) {
          b.tables[i] = given.tables[order[i].second];
          b.keys[i] = given.keys[order[i].second];
        }
      }
      std::vector<float> wanted(b.floats.size()), got(b.floats.size(), 99.0f);
      store.pull(b.tables, b.keys, wanted.data());
      store.close_slot(40);
      std::vector<uint16_t> refused;
      size_t told = 0;
      bool right = true;
      store.pull(b.tables, b.keys, got.data(), &refused, true, [&](size_t keys) {
        const uint64_t floats = store.row_floats(std::span(b.tables).first(keys));
        right = right && keys >= told && std::equal(got.begin(), got.begin() + floats, wanted.begin());
        told = keys;
        for (size_t i = 0; i < keys && refused.empty(); ++i)
          right = right && slot_of(hash_key(b.tables[i], b.keys[i]), store.slots()) != 40;
      });
      CHECK(right && told == count && got == wanted);
      CHECK(refused.empty() == (count < 3000));
      store.open_slot(40);
    }
  }
}

}  // namespace springtide::store_test
