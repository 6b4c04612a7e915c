// Store against the bare probe loop, in one process, alternately: for profiling. `springtide bench store`
// reports. Usage: store_bench ROWS DIM OPTIMIZER(0-5) TABLES ROUNDS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "hash.h"
#include "probe_loop.h"
#include "store.h"

using namespace springtide;

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Best {
  double rate = 0;
  void note(size_t rows, double began) {
    rate = std::max(rate, static_cast<double>(rows) / (seconds() - began) / 1e6);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  uint64_t rows = std::strtoull(argv[1], nullptr, 10);
  auto dim = static_cast<uint32_t>(std::atoi(argv[2]));
  int kind = std::atoi(argv[3]), table_count = std::atoi(argv[4]), rounds = std::atoi(argv[5]);
  constexpr size_t kBatch = 13312;
  Store store({1024, 1, 0, 1});
  std::vector<TableId> ids;
  std::vector<Hyper> hyper;
  TableSpec spec;
  for (int t = 0; t < table_count; ++t) {
    spec.id = static_cast<TableId>(t);
    spec.name = "t" + std::to_string(t);
    spec.dim = dim;
    spec.optim.kind = static_cast<OptimKind>(kind);
    store.declare(spec);
    ids.push_back(spec.id);
    hyper.push_back({0.01f, 0, 0});
  }
  uint64_t per_table = rows / static_cast<uint64_t>(table_count);
  std::vector<float> floats(kBatch * dim, 0.001f);
  double began = seconds();
  for (int t = 0; t < table_count; ++t) {
    std::vector<TableId> tables(kBatch, static_cast<TableId>(t));
    std::vector<Key> keys(kBatch);
    for (uint64_t first = 0; first < per_table; first += kBatch) {
      size_t n = std::min<uint64_t>(kBatch, per_table - first);
      for (size_t i = 0; i < n; ++i) keys[i] = static_cast<Key>(mix64(first + i));
      store.push({tables.data(), n}, {keys.data(), n}, floats.data(), ids, hyper, 0, true, false);
    }
  }
  std::printf("insert %.2f M/s, resident %.2f of payload+24\n",
              static_cast<double>(rows) / (seconds() - began) / 1e6,
              static_cast<double>(store.resident_bytes()) / static_cast<double>(rows * (dim * 4 + 24)));
  ProbeLoop probe(spec, rows, 1);
  std::mt19937_64 random(7);
  Best pull, gather, push, scatter;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::pair<TableId, Key>> picked(kBatch);
    std::vector<int64_t> places(kBatch);
    for (size_t i = 0; i < kBatch; ++i) {
      picked[i] = {static_cast<TableId>(random() % static_cast<uint64_t>(table_count)),
                   static_cast<Key>(mix64(random() % per_table))};
      places[i] = static_cast<int64_t>(random() % rows);
    }
    std::sort(picked.begin(), picked.end(), [](const auto& a, const auto& b) {
      return hash_key(a.first, a.second) >> 54 < hash_key(b.first, b.second) >> 54;
    });
    std::vector<TableId> tables(kBatch);
    std::vector<Key> keys(kBatch);
    for (size_t i = 0; i < kBatch; ++i) std::tie(tables[i], keys[i]) = picked[i];
    began = seconds();
    store.pull(tables, keys, floats.data());
    pull.note(kBatch, began);
    began = seconds();
    probe.gather(places, floats.data());
    gather.note(kBatch, began);
    std::fill(floats.begin(), floats.end(), 0.001f);
    std::swap(places, places);
    for (auto& place : places) place = static_cast<int64_t>(random() % rows);
    for (size_t i = 0; i < kBatch; ++i) {
      picked[i] = {static_cast<TableId>(random() % static_cast<uint64_t>(table_count)),
                   static_cast<Key>(mix64(random() % per_table))};
    }
    std::sort(picked.begin(), picked.end(), [](const auto& a, const auto& b) {
      return hash_key(a.first, a.second) >> 54 < hash_key(b.first, b.second) >> 54;
    });
    for (size_t i = 0; i < kBatch; ++i) std::tie(tables[i], keys[i]) = picked[i];
    began = seconds();
    store.push(tables, keys, floats.data(), ids, hyper, 0, true, false);
    push.note(kBatch, began);
    began = seconds();
    probe.scatter(places, floats.data(), hyper[0]);
    scatter.note(kBatch, began);
  }
  std::printf("pull %.1f gather %.1f ratio %.2f | push %.1f scatter %.1f ratio %.2f (M rows/s, best batch)\n",
              pull.rate, gather.rate, pull.rate / gather.rate, push.rate, scatter.rate,
              push.rate / scatter.rate);
  return 0;
}
