// Store against the bare probe loop, in one process, alternately: for profiling. `springtide bench store`
// reports. Usage: store_bench ROWS DIM OPTIMIZER(0-5) TABLES ROUNDS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <random>

#include "base/hash.h"
#include "bench/probe_loop.h"
#include "store/store.h"

using namespace springtide;

namespace {

// Of this thread on a processor: what others take does not count.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The best time of each batch over all rounds: what other processes take from this one does not count.
struct Best {
  std::map<size_t, double> least;
  template <class Body>
  void time(size_t batch, Body body) {
    double began = seconds();
    body();
    double took = seconds() - began;
    auto [at, fresh] = least.emplace(batch, took);
    if (!fresh) at->second = std::min(at->second, took);
  }
  double rate(size_t rows_a_batch) const {
    double sum = 0;
    for (auto [batch, took] : least) sum += took;
    return static_cast<double>(rows_a_batch * least.size()) / sum / 1e6;
  }
};

constexpr size_t kBatch = 13312;
constexpr size_t kBatches = 128;  // made before: sorting in between would leave cold caches to one side

struct Batch {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<int64_t> places;
};

Batch batch(std::mt19937_64& random, uint64_t table_count, uint64_t per_table) {
  std::vector<std::pair<TableId, Key>> picked(kBatch);
  for (auto& [table, key] : picked) {
    table = static_cast<TableId>(random() % table_count);
    key = static_cast<Key>(mix64(random() % per_table));
  }
  std::sort(picked.begin(), picked.end(), [](const auto& a, const auto& b) {
    return slot_of(hash_key(a.first, a.second), 1024) < slot_of(hash_key(b.first, b.second), 1024);
  });
  Batch made;
  for (auto [table, key] : picked) {
    made.tables.push_back(table);
    made.keys.push_back(key);
    made.places.push_back(static_cast<int64_t>(random() % (table_count * per_table)));
  }
  return made;
}

void fill(Store& store, const std::vector<TableId>& ids, const std::vector<Hyper>& hyper, uint64_t per_table,
          std::vector<float>& floats) {
  std::vector<Key> keys(kBatch);
  for (TableId id : ids) {
    std::vector<TableId> tables(kBatch, id);
    for (uint64_t first = 0; first < per_table; first += kBatch) {
      size_t n = std::min<uint64_t>(kBatch, per_table - first);
      for (size_t i = 0; i < n; ++i) keys[i] = static_cast<Key>(mix64(first + i));
      store.push({tables.data(), n}, {keys.data(), n}, floats.data(), ids, hyper, 0, true, false);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  auto dim = static_cast<uint32_t>(std::atoi(argv[2]));
  uint64_t table_count = std::strtoull(argv[4], nullptr, 10);
  uint64_t per_table = std::strtoull(argv[1], nullptr, 10) / table_count, rows = per_table * table_count;
  Store store({1024, 1, 0, 1});
  std::vector<TableId> ids;
  TableSpec spec;
  for (uint64_t t = 0; t < table_count; ++t) {
    spec.id = static_cast<TableId>(t);
    spec.name = "t" + std::to_string(t);
    spec.dim = dim;
    spec.optim.kind = static_cast<OptimKind>(std::atoi(argv[3]));
    store.declare(spec);
    ids.push_back(spec.id);
  }
  std::vector<Hyper> hyper(table_count, {0.01f, 0, 0});
  std::vector<float> floats(kBatch * dim, 0.001f);
  Best insert, pull, gather, push, scatter;
  insert.time(0, [&] { fill(store, ids, hyper, per_table, floats); });
  std::printf("insert %.2f M/s, resident %.2f GB\n", insert.rate(rows),
              static_cast<double>(store.resident_bytes()) / 1e9);
  ProbeLoop probe(spec, rows, 1);
  std::mt19937_64 random(7);
  std::vector<Batch> batches;
  for (size_t i = 0; i < kBatches; ++i) batches.push_back(batch(random, table_count, per_table));
  for (int round = 0; round < std::atoi(argv[5]); ++round) {
    for (size_t i = 0; i < kBatches; ++i) {
      pull.time(i, [&] { store.pull(batches[i].tables, batches[i].keys, floats.data()); });
    }
    for (size_t i = 0; i < kBatches; ++i) gather.time(i, [&] { probe.gather(batches[i].places, floats.data()); });
    std::fill(floats.begin(), floats.end(), 0.001f);
    for (size_t i = 0; i < kBatches; ++i) {
      push.time(i, [&] { store.push(batches[i].tables, batches[i].keys, floats.data(), ids, hyper, 0, true, false); });
    }
    for (size_t i = 0; i < kBatches; ++i) {
      scatter.time(i, [&] { probe.scatter(batches[i].places, floats.data(), hyper[0]); });
    }
  }
  double a = pull.rate(kBatch), b = gather.rate(kBatch), c = push.rate(kBatch), d = scatter.rate(kBatch);
  std::printf("pull %.1f gather %.1f ratio %.2f | push %.1f scatter %.1f ratio %.2f (M rows/s)\n", a, b, a / b, c, d,
              c / d);
  return 0;
}
