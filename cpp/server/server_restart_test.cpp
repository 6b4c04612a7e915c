// A server dies and restarts at another address with its slots restored. Waiting clients continue, and unacknowledged
// pushes are applied once. If the new address is not announced, the error names the server.
#include <random>
#include <thread>

#include "testing/check.h"
#include "testing/cluster.h"

namespace springtide::server_restart_test {

namespace {

// Restarts a server at a new port, with a new store that has the old content.
void relaunch(Cluster& cluster, size_t server, const std::vector<std::vector<uint8_t>>& images) {
  StoreOptions store;
  store.slots = kSlots;
  store.seed = 5;
  store.reserve_bytes = 1 << 28;
  cluster.stores[server] = std::make_unique<Store>(store);
  cluster.stores[server]->declare(table(0, 4));
  cluster.stores[server]->declare(table(1, 9));
  for (const auto& image : images) cluster.stores[server]->import_slot(image);
  ServerOptions options;
  options.secret = kSecret;
  options.index = static_cast<uint32_t>(server);
  cluster.servers_[server] = std::make_unique<Server>(*cluster.stores[server], options);
  cluster.servers_[server]->start();
  cluster.servers_[server]->set_placement(3, cluster.placement.server_of_slot);
}

std::vector<std::vector<uint8_t>> images_of(const Cluster& cluster, uint16_t server) {
  std::vector<std::vector<uint8_t>> images;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if (cluster.placement.server_of_slot[slot] == server) images.push_back(cluster.stores[server]->export_slot(slot));
  }
  return images;
}

void kill(Cluster& cluster, size_t server) { cluster.servers_[server].reset(); }

}  // namespace

TEST(requests_wait_for_the_next_life_of_a_lost_server_and_go_on) {
  for (const bool shared : {false, true}) {
    Cluster cluster(2);
    RemoteOptions options = cluster.options(shared);
    options.recovery_s = 20;
    RemoteBackend backend(options);
    declare(backend);
    std::mt19937_64 random(1);
    const Routed routed = random_plan(cluster.placement, random, 3000);
    std::vector<float> ones(routed.row_offset.back(), 1.0f);
    const Part part{&routed, ones.data()};
    const std::vector<float> before = pulled(backend, routed);
    backend.push(std::span(&part, 1), named_push(1, 0))->wait();
    for (uint32_t life = 1; life <= 3; ++life) {
      const auto images = images_of(cluster, 1);
      kill(cluster, 1);
      const auto pushing = backend.push(std::span(&part, 1), named_push(1, 4 * life));
      std::vector<float> rows;
      std::thread waits([&] { rows = pulled(backend, routed); });  // blocked until the server is back
      relaunch(cluster, 1, images);
      backend.readdress(1, life, "127.0.0.1", cluster[1].port());
      backend.readdress(1, life, "127.0.0.1", 1);  // the same incarnation again has no effect
      waits.join();
      pushing->wait();
      CHECK(rows.size() == ones.size());
      CHECK(fell_by(before, pulled(backend, routed), static_cast<float>(life + 1)));
    }
    CHECK(backend.stats().transports[1] == (shared ? "shm" : "tcp"));
  }
}

TEST(a_server_that_hangs_is_left_for_its_next_life) {
  Cluster cluster(2);
  Cluster hung(2);  // stands for the old process, which still answers although it is no longer the right server
  RemoteOptions options = hung.options(false);
  options.recovery_s = 20;
  RemoteBackend backend(options);
  declare(backend);
  {
    RemoteBackend other(cluster.options(false));
    declare(other);
  }
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}, {0, 4}});
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  for (uint16_t server = 0; server < 2; ++server) {
    backend.readdress(server, 1, "127.0.0.1", cluster[server].port());
  }
  backend.push(std::span(&part, 1), named_push(1, 0))->wait();
  uint64_t old_keys = 0, new_keys = 0;
  for (size_t server = 0; server < 2; ++server) {
    old_keys += hung[server].stats().pushed_keys;
    new_keys += cluster[server].stats().pushed_keys;
  }
  CHECK(old_keys == 0 && new_keys == routed.keys.size());
}

TEST(a_server_that_nobody_brings_back_is_named_after_the_wait) {
  for (const bool shared : {false, true}) {
    Cluster cluster(2);
    RemoteOptions options = cluster.options(shared);
    options.recovery_s = 0.3, options.reconnect_s = 0;
    RemoteBackend backend(options);
    declare(backend);
    const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}, {0, 4}});
    kill(cluster, 1);
    std::string said;
    try {
      pulled(backend, routed);
    } catch (const PeerLost& error) {
      said = error.what();
    }
    CHECK(said.find("server 1 (127.0.0.1:") == 0);
    CHECK(said.find("it could not be reached again for 0.3 s") != std::string::npos);
  }
}

}  // namespace springtide::server_restart_test
