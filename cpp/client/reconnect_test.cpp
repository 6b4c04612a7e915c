// Tests that connections break while requests are in flight, and that slots move during a push. Nothing is lost or
// applied twice, and a permanent failure names the server.
#include <random>
#include <thread>

#include "testing/check.h"
#include "testing/cluster.h"
#include "testing/proxy.h"

namespace springtide::reconnect_test {

namespace {

struct Proxied : Cluster {
  explicit Proxied(uint16_t servers) : Cluster(servers) {
    for (const auto& server : servers_) proxies.push_back(std::make_unique<Proxy>(server->port()));
  }
  RemoteOptions through_proxies() const {
    RemoteOptions o = options(false);
    for (size_t i = 0; i < proxies.size(); ++i) o.ports[i] = proxies[i]->port();
    return o;
  }
  std::vector<std::unique_ptr<Proxy>> proxies;
};

}  // namespace

TEST(a_push_whose_answer_is_lost_is_sent_again_and_applied_once) {
  Proxied cluster(2);
  RemoteBackend backend(cluster.through_proxies());
  declare(backend);
  std::mt19937_64 random(1);
  const Routed routed = random_plan(cluster.placement, random, 4000);
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  const std::vector<float> before = pulled(backend, routed);
  for (uint64_t batch = 0; batch < 5; ++batch) {
    cluster.proxies[batch % 2]->cut_replies_after(0);  // the push is applied, but its acknowledgement never arrives
    backend.push(std::span(&part, 1), named_push(1, 4 * batch))->wait();
  }
  CHECK(fell_by(before, pulled(backend, routed), 5));
  CHECK(backend.stats().reconnects == 5);
  uint64_t repeated = 0;
  for (size_t s = 0; s < 2; ++s) repeated += cluster[s].stats().repeated_keys;
  CHECK(repeated > 0);
}

TEST(requests_under_way_survive_cuts_at_any_moment) {
  Proxied cluster(2);
  RemoteBackend backend(cluster.through_proxies());
  declare(backend);
  std::mt19937_64 random(2);
  const Routed routed = random_plan(cluster.placement, random, 4000);
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  const std::vector<float> before = pulled(backend, routed);
  constexpr uint64_t kBatches = 40;
  for (uint64_t batch = 0; batch < kBatches; ++batch) {
    cluster.proxies[batch % 2]->cut_replies_after(static_cast<int64_t>(random() % 150000));
    const auto pushing = backend.push(std::span(&part, 1), named_push(1, 4 * batch));
    const std::vector<float> rows = pulled(backend, routed);
    CHECK(rows.size() == ones.size());
    pushing->wait();
  }
  for (const auto& proxy : cluster.proxies) proxy->cut_replies_after(-1);
  CHECK(fell_by(before, pulled(backend, routed), kBatches));
  CHECK(backend.stats().reconnects > 0);
}

TEST(a_push_without_batches_is_not_sent_again) {
  Proxied cluster(1);
  RemoteBackend backend(cluster.through_proxies());
  declare(backend);
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}});
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  cluster.proxies[0]->cut_replies_after(0);
  try {
    backend.push(std::span(&part, 1), sgd())->wait();
    CHECK(false);
  } catch (const PeerLost& e) {
    CHECK(std::string(e.what()).find("named no batches") != std::string::npos);
  }
  CHECK(pulled(backend, routed).size() == ones.size());  // the connection is reopened
}

TEST(a_server_that_cannot_be_reached_again_is_named_after_a_bounded_time) {
  Proxied cluster(2);
  RemoteOptions options = cluster.through_proxies();
  options.reconnect_s = 0.4;
  RemoteBackend backend(options);
  declare(backend);
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}});
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  cluster.proxies[1]->refuse(true);
  cluster.proxies[1]->cut();
  const auto began = Clock::now();
  try {
    backend.push(std::span(&part, 1), named_push(1, 0))->wait();
    CHECK(false);
  } catch (const PeerLost& e) {
    const std::string said = e.what();
    CHECK(said.find("server 1 (127.0.0.1:") == 0);
    CHECK(said.find("could not be reached again for 0.4 s") != std::string::npos);
  }
  CHECK(Clock::now() - began < std::chrono::seconds(5));
  CHECK_THROWS(PeerLost, backend.push(std::span(&part, 1), named_push(1, 0))->wait());
}

TEST(another_server_at_the_same_address_is_not_taken_for_the_old_one) {
  Proxied cluster(1);
  Cluster another(1);
  RemoteBackend backend(cluster.through_proxies());
  declare(backend);
  cluster.proxies[0]->send_to(another[0].port());
  cluster.proxies[0]->cut();
  const Routed routed = plan(cluster.placement, {{0, 1}});
  try {
    pulled(backend, routed);
    CHECK(false);
  } catch (const PeerLost& e) {
    CHECK(std::string(e.what()).find("another server is at its address") != std::string::npos);
  }
}

TEST(a_client_that_closes_while_it_reconnects_does_not_hang) {
  Proxied cluster(1);
  RemoteOptions options = cluster.through_proxies();
  options.reconnect_s = 60;
  const auto began = Clock::now();
  {
    RemoteBackend backend(options);
    declare(backend);
    cluster.proxies[0]->refuse(true);
    cluster.proxies[0]->cut();
  }
  CHECK(Clock::now() - began < std::chrono::seconds(10));
}

// If the client waited for this reply, it would give up the server in the meantime.
TEST(a_pull_that_nobody_waits_for_is_given_up_while_its_server_is_away) {
  Proxied cluster(1);
  RemoteOptions options = cluster.through_proxies();
  options.reconnect_s = 30;
  RemoteBackend backend(options);
  declare(backend);
  const Routed routed = plan(cluster.placement, {{0, 1}, {1, 2}});
  const std::vector<float> before = pulled(backend, routed);
  std::vector<float> rows(before.size());
  const Part part{&routed, rows.data()};
  cluster.proxies[0]->refuse(true);
  cluster.proxies[0]->cut();
  backend.pull(std::span(&part, 1), {0}).reset();
  cluster.proxies[0]->refuse(false);
  CHECK(pulled(backend, routed) == before);
}

TEST(a_part_that_is_refused_goes_to_the_new_owner_and_speaks_for_these_slots_only) {
  for (const bool shared : {false, true}) {
    Cluster cluster(2);
    RemoteBackend backend(cluster.options(shared));
    declare(backend);
    std::mt19937_64 random(6);
    const Routed routed = random_plan(cluster.placement, random, 3000);
    std::vector<float> ones(routed.row_offset.back(), 1.0f);
    const Part part{&routed, ones.data()};
    const std::vector<float> before = pulled(backend, routed);
    backend.push(std::span(&part, 1), named_push(1, 0))->wait();

    Placement moved = cluster.placement;  // slots 0 and 5 change places, and the others stay
    moved.epoch = 4;
    for (const uint32_t slot : {0u, 5u}) {
      const uint16_t from = moved.server_of_slot[slot], to = static_cast<uint16_t>(from ^ 1);
      moved.server_of_slot[slot] = to;
      cluster.stores[to]->import_slot(cluster.stores[from]->export_slot(slot));
      cluster.stores[from]->clear_slot(slot);
    }
    for (size_t s = 0; s < 2; ++s) cluster[s].set_placement(4, moved.server_of_slot);
    std::thread news([&] { backend.reroute(moved); });  // if the slot arrives later, the push waits for it
    for (int again = 0; again < 2; ++again) backend.push(std::span(&part, 1), named_push(1, 4))->wait();
    news.join();
    cluster.placement = moved;
    std::vector<float> direct(routed.row_offset.back());
    for (size_t i = 0; i < routed.keys.size(); ++i) {
      const uint32_t slot = slot_of(hash_key(routed.tables[i], routed.keys[i]), kSlots);
      cluster.stores[moved.server_of_slot[slot]]->pull({&routed.tables[i], 1}, {&routed.keys[i], 1},
                                                       direct.data() + routed.row_offset[i]);
    }
    CHECK(fell_by(before, direct, 2));
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      CHECK(cluster.stores[moved.server_of_slot[slot]]->applied(slot).runs().size() == 1);
  }
}

TEST(a_slot_that_nobody_has_is_looked_for_in_vain_and_that_is_told) {
  Cluster cluster(2);
  RemoteOptions options = cluster.options(false);
  options.reconnect_s = 0.1;
  RemoteBackend backend(options);
  declare(backend);
  std::vector<uint16_t> moved = cluster.placement.server_of_slot;
  for (uint16_t s = 0; s < 2; ++s) {  // each server believes that the other owns the slot
    moved[slot_of(hash_key(0, 1), kSlots)] = s ^ 1;
    cluster[s].set_placement(4, moved);
  }
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}});
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  CHECK_THROWS(WrongOwner, backend.push(std::span(&part, 1), named_push(1, 0))->wait());
  CHECK_THROWS(BadInput, backend.reroute({2, moved, 2}));
  CHECK_THROWS(BadInput, backend.reroute({4, std::vector<uint16_t>(kSlots, 2), 2}));
}

}  // namespace springtide::reconnect_test
