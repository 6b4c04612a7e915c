// Helpers for tests that train a group twice, with and without a cache, and then compare all rows bit by bit. The tests
// cover tables of every kind, requests for their rows, and the complete state of the servers.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "testing/cluster.h"

namespace springtide {

constexpr uint64_t kKeySpace = 60;

using Pair = std::pair<TableId, Key>;

// Returns unique (table, key) pairs for each rank in one step.
inline std::vector<std::vector<Pair>> random_batch(std::mt19937_64& random, uint32_t ranks, size_t keys, TableId tables,
                                                   uint64_t key_space) {
  std::vector<std::vector<Pair>> batch(ranks);
  for (auto& own : batch) {
    std::set<Pair> drawn;
    for (size_t i = 0; i < keys; ++i) {
      // the minimum of two numbers makes some keys frequent
      const uint64_t key = std::min(random() % key_space, random() % key_space);
      drawn.emplace(static_cast<TableId>(random() % tables), static_cast<Key>(key) - 3);
    }
    own.assign(drawn.begin(), drawn.end());
  }
  return batch;
}

inline std::vector<TableSpec> all_optimizers() {
  std::vector<TableSpec> specs;
  const auto add = [&](OptimKind kind, uint32_t dim) -> TableSpec& {
    TableSpec spec = table(static_cast<TableId>(specs.size()), dim);
    spec.optim.kind = kind;
    specs.push_back(spec);
    return specs.back();
  };
  add(OptimKind::sgd, 4);
  add(OptimKind::sgd, 9).optim.momentum = 0.9f;
  TableSpec& dampened = add(OptimKind::sgd, 3);
  dampened.optim.momentum = 0.8f;
  dampened.optim.dampening = 0.1f;
  add(OptimKind::adagrad, 8).optim.initial_accumulator = 0.1f;
  add(OptimKind::rowwise_adagrad, 16).optim.initial_accumulator = 0.1f;
  add(OptimKind::adam, 5);
  add(OptimKind::adam, 8).dtype = DType::bf16;
  add(OptimKind::adagrad, 6).dtype = DType::f16;
  add(OptimKind::rmsprop, 1);
  add(OptimKind::ftrl, 7).optim.l1 = 0.01f;
  return specs;
}

inline Routed routed(const Placement& placement, const std::vector<TableSpec>& specs, std::vector<Pair> pairs) {
  return plan(placement, std::move(pairs), [&](TableId table) { return specs[table].dim; });
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<float> values_of(Backend& backend, const Routed& rows, uint64_t after_step) {
  std::vector<float> out(rows.row_offset.back(), -77.0f);
  const Part part{&rows, out.data()};
  const auto pending = backend.pull(std::span(&part, 1), {after_step});
  pending->wait();
  pending->wait();  // several row sets may wait for one request
  return out;
}

// Returns the images of all keys that a step may have trained, and the row counts of the stores.
inline std::vector<float> everything(std::vector<Store*> stores, const Placement& placement,
                                     const std::vector<TableSpec>& specs) {
  std::vector<float> all;
  for (const TableSpec& spec : specs)
    for (Key key = -3; key < static_cast<Key>(kKeySpace); ++key) {
      const uint16_t server = placement.server_of_slot[slot_of(hash_key(spec.id, key), kSlots)];
      std::vector<float> image(stores[server]->image_floats(spec.id));
      const TableId id = spec.id | kImage;
      stores[server]->pull({&id, 1}, {&key, 1}, image.data());
      all.insert(all.end(), image.begin(), image.end());
    }
  for (Store* store : stores) all.push_back(static_cast<float>(store->rows()));
  return all;
}

inline std::vector<float> everything(Cluster& cluster, const std::vector<TableSpec>& specs) {
  std::vector<Store*> stores;
  for (const auto& store : cluster.stores) stores.push_back(store.get());
  return everything(stores, cluster.placement, specs);
}

inline PushMeta meta_of(uint64_t step, const std::vector<TableSpec>& specs) {
  PushMeta meta;
  meta.step = step;
  meta.bsp = true;
  meta.clock = step;
  const float lr = 0.1f / static_cast<float>(1 + step % 3);
  for (const TableSpec& spec : specs)
    meta.hyper.push_back({.table = spec.id, .lr = lr, .weight_decay = 0.01f, .step = spec.id == 5 ? step : 0});
  return meta;
}

inline std::vector<float> random_gradients(std::mt19937_64& random, const Routed& rows) {
  std::normal_distribution<float> normal;
  std::vector<float> grads(rows.row_offset.back());
  for (float& g : grads) g = random() % 16 == 0 ? -0.0f : normal(random);
  return grads;
}

}  // namespace springtide
