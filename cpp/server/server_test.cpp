// Tests a server and its clients in one process: rows, sums and errors, over TCP and over shared memory.
#include "server/server.h"

#include <unistd.h>

#include <random>
#include <thread>

#include "base/hash.h"
#include "client/remote_backend.h"
#include "net/frame_io.h"
#include "net/handshake.h"
#include "testing/check.h"
#include "testing/cluster.h"

namespace springtide::server_test {

namespace {

void rows_come_and_gradients_go(uint16_t servers, bool shared, bool in_place) {
  std::mt19937_64 random(servers);
  Cluster cluster(servers);
  RemoteBackend backend(cluster.options(shared));
  declare(backend);
  CHECK(backend.stats().transports[0] == (shared ? "shm" : "tcp"));
  const Routed a = random_plan(cluster.placement, random, 3000), b = random_plan(cluster.placement, random, 100);
  std::vector<float> before = pulled(backend, a);
  const size_t floats = a.row_offset.back();
  const std::shared_ptr<float> buffer = backend.buffer(floats);
  std::vector<float> plain(floats);
  float* grads = in_place ? buffer.get() : plain.data();
  for (size_t i = 0; i < floats; ++i) grads[i] = static_cast<float>(i % 13) / 4;
  std::vector<float> none(b.row_offset.back(), 0.0f);
  const std::vector<Part> parts = {{&a, grads}, {&b, none.data()}};
  PushMeta meta = sgd();
  meta.unique = false;
  meta.batches = {{0, 1, 2, 3}};
  const auto pushing = backend.push(parts, meta);
  std::vector<float> after = pulled(backend, a);  // pulled after the push, so that it sees the update
  pushing->wait();
  for (size_t i = 0; i < floats; ++i) CHECK(after[i] == before[i] - grads[i]);

  std::vector<float> ones(floats, 1.0f);
  const Part part{&a, ones.data()};
  backend.assign(std::span(&part, 1), false);
  CHECK(pulled(backend, a) == ones);
  std::vector<float> late(floats, 2.0f);
  const Part second{&a, late.data()};
  backend.assign(std::span(&second, 1), true);  // these rows exist already
  CHECK(pulled(backend, a) == ones);
  std::vector<Key> keys;
  std::vector<float> rows;
  backend.scan(1, keys, rows);
  CHECK(rows.size() == keys.size() * 9);
  CHECK(keys.size() == cluster.stores[0]->rows(1) + (servers > 1 ? cluster.stores[1]->rows(1) : 0) +
                           (servers > 2 ? cluster.stores[2]->rows(1) : 0));
  const RemoteStats stats = backend.stats();
  CHECK(stats.pulls == 4u * servers && stats.pushes == servers && stats.lookup_ns > 0 && stats.update_ns > 0);
}

}  // namespace

TEST(rows_come_and_gradients_go_over_tcp) {
  for (const uint16_t servers : {1, 2, 3}) rows_come_and_gradients_go(servers, false, false);
}

TEST(rows_come_and_gradients_go_through_shared_memory) {
  for (const uint16_t servers : {1, 2, 3}) rows_come_and_gradients_go(servers, true, false);
}

TEST(rows_in_the_window_are_not_copied) {
  for (const uint16_t servers : {1, 2, 3}) rows_come_and_gradients_go(servers, true, true);
}

TEST(several_clients_get_their_own_rows) {
  Cluster cluster(2);
  std::vector<std::thread> threads;
  RemoteBackend first(cluster.options(true));
  declare(first);
  for (uint32_t c = 0; c < 8; ++c) {
    threads.emplace_back([&cluster, c] {
      std::mt19937_64 random(c);
      RemoteBackend backend(cluster.options(c % 2 == 0, c));
      for (int i = 0; i < 20; ++i) {
        const Routed routed = random_plan(cluster.placement, random, 500);
        std::vector<float> direct(routed.row_offset.back());
        for (uint16_t s = 0; s < 2; ++s) {
          const uint32_t begin = routed.server_begin[s], count = routed.server_begin[s + 1] - begin;
          cluster.stores[s]->pull(std::span(routed.tables).subspan(begin, count),
                                  std::span(routed.keys).subspan(begin, count),
                                  direct.data() + routed.row_offset[begin]);
        }
        CHECK(pulled(backend, routed) == direct);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(bsp_sums_in_rank_order) {
  constexpr uint32_t workers = 3;
  Cluster cluster(2, workers);
  std::vector<std::unique_ptr<RemoteBackend>> ranks;
  for (uint32_t r = 0; r < workers; ++r) {
    ranks.push_back(std::make_unique<RemoteBackend>(cluster.options(r == 1, r)));
  }
  declare(*ranks[0]);
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}, {1, 4}});
  const std::vector<float> start = pulled(*ranks[0], routed);
  const float piece[workers] = {1.0f, 1e8f, -1e8f};  // the sum depends on their order
  for (const uint32_t r : {2u, 0u, 1u}) {
    std::vector<float> grads(routed.row_offset.back(), piece[r]);
    const Part part{&routed, grads.data()};
    PushMeta meta = sgd();
    meta.bsp = true;
    meta.step = 1;
    ranks[r]->push(std::span(&part, 1), meta)->wait();
  }
  const std::vector<float> rows = pulled(*ranks[2], routed, 1);
  const float sum = (piece[0] + piece[1]) + piece[2];
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == start[i] - sum);
  try {
    pulled(*ranks[0], routed, 2);
    CHECK(false);
  } catch (const PeerLost& e) {
    CHECK(std::string(e.what()).find("no part of rank 0, 1, 2") != std::string::npos);
  }
  cluster[0].set_generation(1, workers);
  CHECK_THROWS(PeerLost, pulled(*ranks[0], routed));
}

TEST(worker_that_joins_late_learns_the_age_clock_of_the_furthest_server) {
  Cluster cluster(2);
  cluster.stores[0]->clock.advance(4);
  cluster.stores[1]->clock.advance(7);
  RemoteBackend backend(cluster.options(false));
  const std::vector<TableSpec> tables = {table(0, 4)};
  CHECK(backend.declare(tables) == 7);
}

TEST(mistakes_are_told_and_nothing_breaks) {
  Cluster cluster(2);
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  const std::vector<TableSpec> other = {table(0, 5)};
  CHECK_THROWS(BadInput, backend.declare(other));
  const Routed unknown = plan(cluster.placement, {{7, 1}});
  CHECK_THROWS(BadInput, pulled(backend, unknown));
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}, {0, 4}});
  const std::vector<float> before = pulled(backend, routed);
  std::vector<float> grads(routed.row_offset.back(), 1.0f);
  grads.back() = NAN;
  const Part part{&routed, grads.data()};
  CHECK_THROWS(NonFinite, backend.push(std::span(&part, 1), sgd())->wait());
  PushMeta nothing;
  grads.back() = 1.0f;
  CHECK_THROWS(BadInput, backend.push(std::span(&part, 1), nothing)->wait());

  std::vector<uint16_t> moved = cluster.placement.server_of_slot;
  for (uint16_t s = 0; s < 2; ++s) {  // each server believes that the other owns the slot
    moved[slot_of(hash_key(0, 1), kSlots)] = s ^ 1;
    cluster[s].set_placement(4, moved);
  }
  RemoteOptions hasty = cluster.options(false);
  hasty.reconnect_s = 0.1;
  RemoteBackend follower(hasty);
  CHECK_THROWS(WrongOwner, pulled(follower, routed));
  CHECK_THROWS(WrongOwner, follower.push(std::span(&part, 1), sgd())->wait());
  CHECK_THROWS(BadInput, cluster[0].set_placement(3, moved));
  RemoteOptions wrong = cluster.options(false);
  wrong.secret = "another";
  CHECK_THROWS(PeerLost, RemoteBackend{wrong});
  std::swap(wrong.ports[0], wrong.ports[1]);
  wrong.secret = kSecret;
  CHECK_THROWS(PeerLost, RemoteBackend{wrong});
}

TEST(a_lost_server_is_named) {
  Cluster cluster(2);
  RemoteOptions options = cluster.options(false);
  RemoteBackend backend(options);
  declare(backend);
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}});
  cluster[1].stop(1);
  try {
    pulled(backend, routed);
    CHECK(false);
  } catch (const PeerLost& e) {
    CHECK(std::string(e.what()).find("server 1 (127.0.0.1:") != std::string::npos);
    CHECK(std::string(e.what()).find("logs/server-1.log") != std::string::npos);
  }
  options.connect_timeout_s = 0.2;
  CHECK_THROWS(PeerLost, RemoteBackend{options});
}

}  // namespace springtide::server_test
