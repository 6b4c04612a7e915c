// Tests pushes by identity over the network: repeated, at the same time over two connections, and to slots that have
// moved.
#include <thread>

#include "testing/check.h"
#include "testing/cluster.h"

namespace springtide::server_once_test {

namespace {

PushMeta named(uint32_t shard, uint64_t first, uint64_t count = 4) {
  PushMeta meta = sgd();
  meta.batches = {{0, shard, first, count}};
  return meta;
}

// Pushes gradients of one to every row. The number of applied pushes is how much a row has decreased.
struct Pushing {
  explicit Pushing(const Cluster& cluster, size_t keys = 3000) {
    std::mt19937_64 random(4);
    routed = random_plan(cluster.placement, random, keys);
    other = random_plan(cluster.placement, random, 50);
    ones.assign(routed.row_offset.back(), 1.0f);
    none.assign(other.row_offset.back(), 0.0f);
    parts = {{&routed, ones.data()}, {&other, none.data()}};
  }
  Routed routed, other;
  std::vector<float> ones, none;
  std::vector<Part> parts;
};

bool lost(const std::vector<float>& before, const std::vector<float>& after, float wanted) {
  for (size_t i = 0; i < before.size(); ++i)
    if (std::abs(before[i] - after[i] - wanted) > 1e-4f) return false;
  return true;
}

uint64_t repeated(Cluster& cluster) {
  uint64_t keys = 0;
  for (const auto& server : cluster.servers_) keys += server->stats().repeated_keys;
  return keys;
}

}  // namespace

TEST(a_repeated_push_is_acknowledged_and_skipped) {
  for (const bool shared : {false, true}) {
    Cluster cluster(2);
    RemoteBackend backend(cluster.options(shared)), another(cluster.options(!shared, 1));
    declare(backend);
    Pushing pushing(cluster);
    PushMeta meta = named(1, 0);
    meta.unique = false;
    const std::vector<float> before = pulled(backend, pushing.routed);
    for (int again = 0; again < 3; ++again) backend.push(pushing.parts, meta)->wait();
    another.push(pushing.parts, meta)->wait();
    CHECK(lost(before, pulled(backend, pushing.routed), 1));
    CHECK(repeated(cluster) >= 3 * pushing.routed.keys.size());
    meta.batches = {{0, 1, 8, 4}};
    backend.push(pushing.parts, meta)->wait();
    meta.batches = {{0, 1, 4, 4}};
    another.push(pushing.parts, meta)->wait();
    CHECK(lost(before, pulled(backend, pushing.routed), 3));
  }
}

TEST(copies_of_a_push_at_once_on_several_connections_apply_once) {
  Cluster cluster(2);
  RemoteBackend first(cluster.options(true));
  declare(first);
  const Pushing pushing(cluster);
  const std::vector<float> before = pulled(first, pushing.routed);
  constexpr uint32_t kClients = 4, kBatches = 15;
  std::vector<std::thread> threads;
  for (uint32_t c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      RemoteBackend backend(cluster.options(c % 2 == 0, c));
      const Pushing own(cluster);
      for (uint32_t batch = 0; batch < kBatches; ++batch) {
        PushMeta meta = named(1, 4 * ((batch + c * 5) % kBatches));
        meta.unique = false;
        backend.push(own.parts, meta)->wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(lost(before, pulled(first, pushing.routed), kBatches));
}

TEST(an_empty_push_counts_at_every_server) {
  Cluster cluster(2);
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  Pushing pushing(cluster);
  const std::vector<float> before = pulled(backend, pushing.routed);
  backend.push({}, named(1, 0))->wait();
  PushMeta meta = named(1, 0);
  meta.unique = false;
  backend.push(pushing.parts, meta)->wait();
  CHECK(lost(before, pulled(backend, pushing.routed), 0));
}

TEST(batches_summed_otherwise_than_before_are_refused_by_name) {
  Cluster cluster(1);
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  Pushing pushing(cluster);
  PushMeta meta = named(1, 0), both = named(1, 0);
  meta.unique = both.unique = false;
  both.batches.push_back({0, 1, 4, 4});
  backend.push(pushing.parts, meta)->wait();
  const std::vector<float> before = pulled(backend, pushing.routed);
  try {
    backend.push(pushing.parts, both)->wait();
    CHECK(false);
  } catch (const PartlyApplied& e) {
    CHECK(std::string(e.what()).find("samples 0 to 4 of shard 1") != std::string::npos);
  }
  CHECK(pulled(backend, pushing.routed) == before);
  backend.push(pushing.parts, named(1, 4))->wait();  // the connection stays open
}

// The server has had the slot only since epoch 4, so a push that was routed at epoch 3 does not cover it.
TEST(a_push_that_names_no_slots_does_not_speak_for_one_that_came_later_and_a_named_one_follows_it) {
  Cluster cluster(2);
  const uint32_t slot = slot_of(hash_key(0, 1), kSlots);
  const uint16_t to = static_cast<uint16_t>(cluster.placement.server_of_slot[slot] ^ 1);
  RemoteOptions first = cluster.options(false);
  first.placement.epoch = 1;  // the job's first placement, from which the covered slots follow
  RemoteBackend old(first);
  RemoteBackend named_slots(cluster.options(false));
  declare(old);
  std::vector<uint16_t> moved = cluster.placement.server_of_slot;
  moved[slot] = to;
  for (size_t s = 0; s < 2; ++s) cluster[s].set_placement(4, moved);
  const Routed elsewhere = plan(cluster.placement, {});
  const Part nothing{&elsewhere, nullptr};
  old.push(std::span(&nothing, 1), named(1, 0))->wait();
  CHECK(cluster.stores[to]->applied(slot).runs().empty());
  named_slots.push(std::span(&nothing, 1), named(2, 0))->wait();
  CHECK(cluster.stores[to]->applied(slot).runs().size() == 1);
  cluster.placement.epoch = 4;
  cluster.placement.server_of_slot = moved;
  RemoteBackend fresh(cluster.options(false));
  fresh.push(std::span(&nothing, 1), named(1, 0))->wait();
  CHECK(cluster.stores[to]->applied(slot).runs().size() == 2);
}

}  // namespace springtide::server_once_test
