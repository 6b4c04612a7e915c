// Servers in this process for native tests, and plans like those that a client makes. Two tables: 0 of dim 4, 1 of dim
// 9.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/hash.h"
#include "client/remote_backend.h"
#include "server/server.h"

namespace springtide {

constexpr uint32_t kSlots = 64;
inline const std::string kSecret = "a secret of this test";

struct Cluster {
  // `server_tls` and `client_tls` are the folders with the certificates of servers and clients; empty: no TLS.
  explicit Cluster(uint16_t servers, uint32_t workers = 1, const std::string& server_tls = "",
                   std::string client_tls = "")
      : tls(std::move(client_tls)) {
    placement.servers = servers;
    placement.epoch = 3;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      placement.server_of_slot.push_back(static_cast<uint16_t>(slot % servers));
    }
    for (uint16_t i = 0; i < servers; ++i) {
      StoreOptions store;
      store.slots = kSlots;
      store.seed = 5;
      store.reserve_bytes = 1 << 28;
      stores.push_back(std::make_unique<Store>(store));
      ServerOptions options;
      options.secret = kSecret;
      options.tls = server_tls;
      options.shared_memory = server_tls.empty();
      options.index = i;
      options.workers = workers;
      options.stall_s = 1;
      options.handshake_s = 1;
      options.step_wait_s = 2;
      servers_.push_back(std::make_unique<Server>(*stores.back(), options));
      servers_.back()->start();
      servers_.back()->set_placement(3, placement.server_of_slot);
    }
  }
  RemoteOptions options(bool shared, uint32_t rank = 0) const {
    RemoteOptions o;
    for (const auto& server : servers_) {
      o.hosts.push_back("127.0.0.1");
      o.ports.push_back(server->port());
    }
    o.secret = kSecret;
    o.tls = tls;
    o.placement = placement;
    o.rank = rank;
    o.connect_timeout_s = 5;
    o.request_timeout_s = 20;
    o.shared_memory = shared;
    return o;
  }
  Server& operator[](size_t i) { return *servers_[i]; }

  Placement placement;
  std::string tls;
  std::vector<std::unique_ptr<Store>> stores;
  std::vector<std::unique_ptr<Server>> servers_;
};

inline TableSpec spec(TableId id, uint32_t dim, OptimKind kind) {
  TableSpec table;
  table.id = id;
  table.name = "t" + std::to_string(id);
  table.dim = dim;
  table.optim.kind = kind;
  return table;
}

inline TableSpec table(TableId id, uint32_t dim) {
  TableSpec made = spec(id, dim, OptimKind::sgd);
  made.init = {InitKind::uniform, -1, 1};
  return made;
}

inline uint32_t dim_of_table(TableId table) { return table == 0 ? 4 : 9; }

// Keys in the order in which a client plans them: by server, and then by slot.
template <class DimOf = uint32_t (*)(TableId)>
Routed plan(const Placement& placement, std::vector<std::pair<TableId, Key>> pairs, DimOf dim_of = dim_of_table) {
  const auto place = [&](const auto& pair) {
    const uint32_t slot =
        slot_of(hash_key(pair.first, pair.second), static_cast<uint32_t>(placement.server_of_slot.size()));
    return std::tuple(placement.server_of_slot[slot], slot, pair);
  };
  std::sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  Routed routed;
  routed.version = placement.version;
  routed.row_offset.push_back(0);
  routed.server_begin.assign(placement.servers + size_t{1}, 0);
  for (const auto& pair : pairs) {
    routed.tables.push_back(pair.first);
    routed.keys.push_back(pair.second);
    routed.row_offset.push_back(routed.row_offset.back() + dim_of(pair.first));
    ++routed.server_begin[std::get<0>(place(pair)) + size_t{1}];
  }
  for (size_t s = 0; s < placement.servers; ++s) routed.server_begin[s + 1] += routed.server_begin[s];
  return routed;
}

inline Routed random_plan(const Placement& placement, std::mt19937_64& random, size_t keys) {
  std::vector<std::pair<TableId, Key>> pairs;
  for (size_t i = 0; i < keys; ++i) pairs.emplace_back(random() % 2, static_cast<Key>(random() % (8 * keys)));
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return plan(placement, pairs);
}

inline std::vector<float> pulled(RemoteBackend& backend, const Routed& routed, uint64_t after_step = 0) {
  std::vector<float> rows(routed.row_offset.back(), -77.0f);
  const Part part{&routed, rows.data()};
  backend.pull(std::span(&part, 1), {after_step})->wait();
  return rows;
}

inline PushMeta sgd() {
  PushMeta meta;
  meta.hyper = {{.table = 0, .lr = 1.0f}, {.table = 1, .lr = 1.0f}};
  return meta;
}

// True if every float has decreased by `wanted`.
inline bool fell_by(const std::vector<float>& before, const std::vector<float>& after, float wanted) {
  for (size_t i = 0; i < before.size(); ++i)
    if (std::abs(before[i] - after[i] - wanted) > 1e-3f) return false;
  return true;
}

// A push of four samples of a shard, with the identity of the batch.
inline PushMeta named_push(uint32_t shard, uint64_t first) {
  PushMeta meta = sgd();
  meta.unique = false;
  meta.batches = {{0, shard, first, 4}};
  return meta;
}

inline void declare(RemoteBackend& backend) {
  const std::vector<TableSpec> tables = {table(0, 4), table(1, 9)};
  backend.declare(tables);
}

}  // namespace springtide
