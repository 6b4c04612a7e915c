// Tests the annealer on random tasks: the allocation is even and repeatable, and nearly optimal for tiny tasks.
#include "schedule/allocate/allocate.h"

#include <algorithm>
#include <random>
#include <vector>

#include "testing/check.h"

namespace springtide::allocate_test {

namespace {

struct Case {
  std::vector<uint32_t> sample_begin{0}, units, quota;
  std::vector<uint16_t> owner;
  std::vector<uint8_t> dirty;
  AllocationTask task;

  Case(std::mt19937& random, uint32_t workers, uint32_t samples, uint32_t keys, uint32_t most_keys) {
    const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
    for (uint32_t u = 0; u < keys; ++u) {
      owner.push_back(below(2) ? static_cast<uint16_t>(below(workers)) : kNoWorker);
      dirty.push_back(owner.back() != kNoWorker && below(4) > 0);
    }
    for (uint32_t i = 0; i < samples; ++i) {
      std::vector<uint32_t> of_sample;
      for (uint32_t k = below(most_keys + 1); k > 0; --k) of_sample.push_back(below(keys));
      std::sort(of_sample.begin(), of_sample.end());
      of_sample.erase(std::unique(of_sample.begin(), of_sample.end()), of_sample.end());
      units.insert(units.end(), of_sample.begin(), of_sample.end());
      sample_begin.push_back(static_cast<uint32_t>(units.size()));
    }
    quota = even_quota(samples, workers);
    task.workers = workers;
    task.samples = samples;
    task.sample_begin = sample_begin;
    task.units = units;
    task.owner = owner;
    task.dirty = dirty;
    task.quota = quota;
    task.capacity_rows = 1000;
    task.p2p = static_cast<P2P>(below(3));
    task.p2p_trainers = 1 + below(4);
    task.seed = below(9);
    task.effort = below(4);
  }
  Case(const Case&) = delete;
};

std::vector<int32_t> allocated(const Case& one, void (*policy)(const AllocationTask&, std::span<int32_t>)) {
  std::vector<int32_t> ranks(one.task.samples, -1);
  policy(one.task, ranks);
  std::vector<uint32_t> got(one.task.workers);
  for (int32_t rank : ranks) ++got.at(static_cast<size_t>(rank));
  CHECK(got == one.quota);
  return ranks;
}

}  // namespace

TEST(every_task_is_shared_out_evenly_and_alike) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 200; ++turn) {
    const Case one(random, 1 + static_cast<uint32_t>(random() % 20), static_cast<uint32_t>(random() % 90),
                   1 + static_cast<uint32_t>(random() % 60), 8);
    const auto ranks = allocated(one, allocate_anneal);
    CHECK(ranks == allocated(one, allocate_anneal));
  }
}

TEST(of_a_tiny_task_nearly_the_best_is_found) {
  uint64_t best = 0, found = 0;
  std::mt19937 random(2);
  for (int turn = 0; turn < 100; ++turn) {
    const auto workers = 1 + static_cast<uint32_t>(random() % 3);
    const Case one(random, workers, static_cast<uint32_t>(random() % 6), 6, 4);
    std::vector<int32_t> every;
    for (uint32_t w = 0; w < workers; ++w) every.insert(every.end(), one.quota[w], static_cast<int32_t>(w));
    uint64_t least = UINT64_MAX;
    do {
      least = std::min(least, transmissions(one.task, every));
    } while (std::next_permutation(every.begin(), every.end()));
    best += least;
    found += transmissions(one.task, allocated(one, allocate_anneal));
    CHECK(transmissions(one.task, allocated(one, allocate_anneal)) >= least);
  }
  CHECK(found <= best + best / 20);
}

}  // namespace springtide::allocate_test
