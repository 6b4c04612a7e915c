// Large calls in slot order on similar tables take a separate code path. The result of that path is bit-identical to
// many small calls with the same keys.
#include "store/keys/row_pipeline.h"

#include <algorithm>
#include <random>
#include <set>

#include "store/store.h"
#include "testing/check.h"

namespace springtide::row_pipeline_test {

namespace {

constexpr uint32_t kSlots = 256;
constexpr TableId kTableCount = 5;

struct Call {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> grads;
};

TableSpec spec(TableId id, uint32_t dim, OptimKind kind, bool crowded) {
  TableSpec made;
  made.id = id;
  made.name = "t" + std::to_string(id);
  made.dim = dim;
  made.optim.kind = kind;
  made.init = {InitKind::uniform, -1, 1};
  made.min_count = id == 1 ? 2 : 0;                   // keys of this table get a row when they are seen a second time
  made.capacity_rows = id == 2 && crowded ? 512 : 0;  // its oldest rows are evicted
  return made;
}

// Distinct keys in slot order, but `astray` of them are in wrong positions.
Call call(std::mt19937_64& random, size_t count, uint32_t dim, size_t astray) {
  std::set<std::pair<uint64_t, std::pair<TableId, Key>>> drawn;
  while (drawn.size() < count) {
    const auto table = static_cast<TableId>(random() % kTableCount);
    const auto key = static_cast<Key>(random() % 4000);
    drawn.insert({hash_key(table, key), {table, key}});
  }
  Call made;
  for (const auto& [hash, row] : drawn) {
    made.tables.push_back(row.first);
    made.keys.push_back(row.second);
  }
  for (size_t i = 0; i < astray; ++i) {
    const size_t a = random() % count, b = random() % count;
    std::swap(made.tables[a], made.tables[b]);
    std::swap(made.keys[a], made.keys[b]);
  }
  for (size_t i = 0; i < count * dim; ++i) made.grads.push_back(static_cast<float>(random() % 1000) / 1000.0f);
  return made;
}

// Takes one key of each stripe in turn. The keys are then not in slot order, but the keys of each stripe keep their
// order.
Call dealt(const Call& given, uint32_t dim) {
  std::vector<std::vector<size_t>> stripes(kStripes);
  for (size_t i = 0; i < given.keys.size(); ++i)
    stripes[stripe_of(hash_key(given.tables[i], given.keys[i]))].push_back(i);
  Call made;
  for (size_t turn = 0; made.keys.size() < given.keys.size(); ++turn) {
    for (const std::vector<size_t>& places : stripes) {
      if (turn >= places.size()) continue;
      const size_t place = places[turn];
      made.tables.push_back(given.tables[place]);
      made.keys.push_back(given.keys[place]);
      const auto from = given.grads.begin() + static_cast<ptrdiff_t>(place * dim);
      made.grads.insert(made.grads.end(), from, from + dim);
    }
  }
  return made;
}

struct Pair {
  Pair(uint32_t row_dim, OptimKind kind, uint32_t threads, bool crowded = true)
      : ordered({kSlots, 7, uint64_t{256} << 20, threads}), other({kSlots, 7, uint64_t{256} << 20, 1}), dim(row_dim) {
    for (TableId id = 0; id < kTableCount; ++id) {
      ordered.declare(spec(id, dim, kind, crowded));
      other.declare(spec(id, dim, kind, crowded));
      hyper.push_back({.table = id, .lr = 0.1f, .step = 1});
    }
  }
  void push(const Call& given, uint64_t clock) {
    std::vector<uint16_t> refused[2];
    const PushStats got = push(ordered, given, clock, refused[0]);
    const PushStats wanted = push(other, dealt(given, dim), clock, refused[1]);
    CHECK(got.applied == wanted.applied);
    CHECK(got.created == wanted.created);
    CHECK(got.waiting == wanted.waiting);
    CHECK(got.evicted == wanted.evicted);
    CHECK(std::set(refused[0].begin(), refused[0].end()) == std::set(refused[1].begin(), refused[1].end()));
  }
  PushStats push(Store& store, const Call& c, uint64_t clock, std::vector<uint16_t>& refused) {
    return store.push(c.tables, c.keys, c.grads.data(), hyper, clock, true, &refused);
  }
  void check_pull(Call given) {
    Call other_way = dealt(given, dim);
    ordered.pull(given.tables, given.keys, given.grads.data());
    other.pull(other_way.tables, other_way.keys, other_way.grads.data());
    CHECK(dealt(given, dim).grads == other_way.grads);
  }

  Store ordered, other;
  uint32_t dim;
  std::vector<TableHyper> hyper;
};

}  // namespace

TEST(keys_in_slot_order_are_trained_as_in_any_other) {
  std::mt19937_64 random(11);
  for (const uint32_t threads : {1u, 3u}) {
    for (const uint32_t dim : {1u, 5u, 8u, 16u, 32u, 64u}) {
      for (const OptimKind kind : {OptimKind::sgd, OptimKind::adagrad, OptimKind::rowwise_adagrad}) {
        Pair pair(dim, kind, threads);
        for (uint64_t step = 1; step <= 3; ++step) {
          pair.push(call(random, 6000, dim, 0), step);
          pair.check_pull(call(random, 5000, dim, 0));
        }
      }
    }
  }
}

TEST(keys_that_lie_astray_are_trained_like_all_others) {
  std::mt19937_64 random(12);
  for (const uint32_t threads : {1u, 2u, 4u}) {
    Pair pair(16, OptimKind::adagrad, threads, false);
    for (uint64_t step = 1; step <= 3; ++step) {
      const Call c = call(random, 6000, 16, 20);
      pair.push(c, step);
      pair.check_pull(c);
    }
  }
}

TEST(closed_slots_are_refused_and_stay_as_they_are) {
  std::mt19937_64 random(13);
  for (const uint32_t threads : {1u, 3u}) {
    Pair pair(16, OptimKind::sgd, threads);
    pair.push(call(random, 6000, 16, 0), 1);
    for (const uint32_t slot : {0u, 77u, 78u, 255u}) {
      pair.ordered.close_slot(slot);
      pair.other.close_slot(slot);
    }
    const Call c = call(random, 6000, 16, 0);
    pair.push(c, 2);
    pair.check_pull(c);
  }
}

}  // namespace springtide::row_pipeline_test
