// Tests the cache of bounded staleness: it is exact in a bsp group with staleness 0, and stays within its bound
// otherwise.
#include "cache/versioned_backend.h"

#include "client/local_backend.h"
#include "testing/cached_groups.h"
#include "testing/check.h"

namespace springtide::versioned_backend_test {

namespace {

struct Setting {
  uint16_t servers;
  uint32_t ranks;
  uint64_t capacity_bytes;
  bool shared;
  uint64_t seed;
};

VersionedStats train_both(const Setting& how) {
  const std::vector<TableSpec> specs = all_optimizers();
  Cluster plain(how.servers, how.ranks), cached(how.servers, how.ranks);
  std::vector<std::unique_ptr<RemoteBackend>> direct;
  std::vector<std::shared_ptr<RemoteBackend>> behind;
  std::vector<std::unique_ptr<VersionedBackend>> caches;
  for (uint32_t r = 0; r < how.ranks; ++r) {
    direct.push_back(std::make_unique<RemoteBackend>(plain.options(how.shared, r)));
    behind.push_back(std::make_shared<RemoteBackend>(cached.options(how.shared, r)));
    caches.push_back(
        std::make_unique<VersionedBackend>(behind.back(), VersionedOptions{.capacity_bytes = how.capacity_bytes}));
    direct.back()->declare(specs);
    caches.back()->declare(specs);
    for (const TableSpec& spec : specs)
      if (spec.id != 2) caches.back()->cache_tables(std::span(&spec.id, 1));
  }
  std::mt19937_64 random(how.seed);
  for (uint64_t step = 1; step <= 40; ++step) {
    const auto batch = random_batch(random, how.ranks, 24, 10, kKeySpace);
    for (uint32_t r = 0; r < how.ranks; ++r) {
      const Routed rows = routed(plain.placement, specs, batch[r]);
      if (!CHECK(same_bits(values_of(*direct[r], rows, step - 1), values_of(*caches[r], rows, step - 1)))) return {};
    }
    for (uint32_t r = 0; r < how.ranks; ++r) {
      const Routed rows = routed(plain.placement, specs, step % 9 == 0 ? std::vector<Pair>() : batch[r]);
      std::vector<float> grads = random_gradients(random, rows);
      const std::vector<Part> parts(1, Part{&rows, grads.data()});
      direct[r]->push(parts, meta_of(step, specs))->wait();
      caches[r]->push(parts, meta_of(step, specs))->wait();
    }
    CHECK(direct[0]->step_complete(step, 5) && behind[0]->step_complete(step, 5));
  }
  for (auto* group : {&direct[0]}) (*group)->apply_step(40)->wait();
  behind[0]->apply_step(40)->wait();
  CHECK(same_bits(everything(plain, specs), everything(cached, specs)));
  VersionedStats all;
  for (auto& cache : caches) {
    const VersionedStats one = cache->stats();
    CHECK(one.bytes <= how.capacity_bytes && one.staleness_max == 0);
    all.hits += one.hits;
    all.stale += one.stale;
    all.evicted += one.evicted;
  }
  return all;
}

// Two workers of an async job on one server.
struct Two {
  explicit Two(uint32_t staleness, uint64_t capacity_bytes = 1 << 20) : cluster(1) {
    inner = std::make_shared<RemoteBackend>(cluster.options(false));
    other = std::make_unique<RemoteBackend>(cluster.options(false, 1));
    cache = std::make_unique<VersionedBackend>(
        inner, VersionedOptions{.capacity_bytes = capacity_bytes, .staleness = staleness});
    const std::vector<TableSpec> specs = {table(0, 4), table(1, 9)};
    cache->declare(specs);
    other->declare(specs);
    const TableId id = 0;
    cache->cache_tables(std::span(&id, 1));
  }
  std::vector<float> read(Backend& from, Key key) { return values_of(from, plan(cluster.placement, {{0, key}}), 0); }
  void train(Backend& by, Key key) {
    const Routed row = plan(cluster.placement, {{0, key}});
    std::vector<float> grad(4, 1.0f);
    const Part part{&row, grad.data()};
    by.push(std::span(&part, 1), sgd())->wait();
  }

  Cluster cluster;
  std::shared_ptr<RemoteBackend> inner;
  std::unique_ptr<RemoteBackend> other;
  std::unique_ptr<VersionedBackend> cache;
};

}  // namespace

TEST(in_a_bsp_group_that_allows_no_staleness_it_is_bit_identical) {
  const VersionedStats large = train_both({2, 3, 1 << 20, true, 1});
  CHECK(large.hits > 0 && large.stale > 0 && large.evicted == 0);
  CHECK(train_both({1, 2, 5000, false, 2}).evicted > 0);
  CHECK(train_both({3, 1, 1 << 20, false, 3}).stale == 0);  // nobody else trains
  CHECK(train_both({1, 2, 10, false, 4}).hits == 0);        // the cache has room for no row
}

TEST(copies_lack_at_most_as_many_trainings_as_allowed) {
  Two two(3);
  const auto first = two.read(*two.cache, 5);
  for (int others = 1; others <= 3; ++others) {
    two.train(*two.other, 5);
    CHECK(same_bits(two.read(*two.cache, 5), first));
    CHECK(two.cache->stats().staleness_max == static_cast<uint64_t>(others));
  }
  CHECK(two.cache->stats().hits == 3 && two.cache->stats().staleness_sum == 6);
  two.train(*two.other, 5);
  CHECK(same_bits(two.read(*two.cache, 5), two.read(*two.other, 5)));
  CHECK(two.cache->stats().stale == 1 && two.cache->stats().staleness_max == 3);
}

TEST(own_trainings_are_in_the_copy_and_make_it_no_older) {
  Two two(0);
  two.read(*two.cache, 5);
  for (int i = 0; i < 10; ++i) {
    two.train(*two.cache, 5);
    CHECK(same_bits(two.read(*two.cache, 5), two.read(*two.other, 5)));
  }
  CHECK(two.cache->stats().hits == 10 && two.cache->stats().stale == 0 && two.cache->stats().trained_rows == 10);
  const Routed row = plan(two.cluster.placement, {{0, 5}});
  std::vector<float> rows(4);
  const Part part{&row, rows.data()};
  const auto ahead = two.cache->pull(std::span(&part, 1), {});  // requested before the push, as a prefetch is
  two.train(*two.cache, 5);
  ahead->wait();
  CHECK(same_bits(rows, two.read(*two.other, 5)));
}

TEST(rows_that_went_elsewhere_or_were_assigned_are_pulled_again) {
  Two two(100);
  two.read(*two.cache, 5);
  two.train(*two.other, 5);
  const uint32_t slot = slot_of(hash_key(0, 5), kSlots);
  const std::vector<uint8_t> image = two.cluster.stores[0]->export_slot(slot);
  two.cluster.stores[0]->import_slot(image);  // as if another worker had pushed
  CHECK(same_bits(two.read(*two.cache, 5), two.read(*two.other, 5)));
  CHECK(two.cache->stats().stale == 1);
  const Routed row = plan(two.cluster.placement, {{0, 5}});
  std::vector<float> sevens(4, 7.0f);
  const Part part{&row, sevens.data()};
  two.cache->assign(std::span(&part, 1), false);
  CHECK(two.read(*two.cache, 5) == sevens && two.cache->stats().misses == 2);
  two.cache->clear();
  CHECK(two.read(*two.cache, 5) == sevens && two.cache->stats().misses == 3);
}

TEST(the_longest_unused_copies_make_room) {
  Two two(0, 3 * RowCache::row_bytes(4));
  for (const Key key : {1, 2, 3, 1, 4}) two.read(*two.cache, key);
  CHECK(two.cache->stats().rows == 3 && two.cache->stats().evicted == 1);
  two.read(*two.cache, 1);
  CHECK(two.cache->stats().hits == 2);
  two.read(*two.cache, 2);
  CHECK(two.cache->stats().hits == 2 && two.cache->stats().misses == 5);
}

TEST(tables_in_this_process_are_cached_alike) {
  StoreOptions options;
  options.slots = kSlots;
  options.reserve_bytes = 1 << 28;
  VersionedBackend cache(std::make_shared<LocalBackend>(options, uint16_t{2}), {});
  const std::vector<TableSpec> specs = {table(0, 4)};
  cache.declare(specs);
  cache.cache_tables(std::span(&specs[0].id, 1));
  const Routed rows = routed(*cache.placement(), specs, {{0, 1}, {0, 2}, {0, 3}});
  const auto first = values_of(cache, rows, 0);
  CHECK(same_bits(values_of(cache, rows, 0), first) && cache.stats().hits == 3 && cache.stats().misses == 3);
}

}  // namespace springtide::versioned_backend_test
