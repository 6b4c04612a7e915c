// Allocation of a batch's samples to workers: the task and the policies. A policy is a deterministic function of the
// task, so all ranks compute the same result. In: schedule.h. Out: a rank per sample, equal batch sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"

namespace springtide {

constexpr uint16_t kNoWorker = UINT16_MAX;  // owner of a key that no worker caches
constexpr uint32_t kMostWorkers = 128;

// What may go straight from worker to worker: nothing; rows to the one that trains them next alone; or also
// values and gradients of rows that a few workers train, one of whom keeps the row.
enum class P2P : uint8_t { off = 0, rows = 1, gradients = 2 };

struct AllocationTask {
  uint32_t workers = 0;
  uint32_t samples = 0;
  // Sample i has the distinct keys units[sample_begin[i]] … units[sample_begin[i + 1] - 1]. Units index what follows.
  std::span<const uint32_t> sample_begin;  // size samples + 1
  std::span<const uint32_t> units;
  std::span<const uint16_t> owner;  // by unit: the worker whose cache has the latest row, or kNoWorker
  std::span<const uint8_t> dirty;   // by unit: 1 when only its owner has the latest row, not the servers
  // Units that count for scoring: positions of a sample's keys when all samples have their keys of the same
  // tables at the same positions (then `positions` is not empty), and by unit otherwise.
  std::span<const uint32_t> positions;
  std::span<const uint8_t> scored;  // by unit
  std::span<const uint32_t> quota;  // by worker: samples it gets; they sum to `samples`
  uint64_t capacity_rows = 0;       // of a worker's cache
  P2P p2p = P2P::off;
  uint32_t p2p_trainers = 0;  // P2P::gradients: with more trainers than this the server sums
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t effort = 0;         // a policy's own measure of how long it may search; 0: its default
  uint32_t threads = 1;        // parts that a policy may split into: the answer may depend on their number
  ThreadPool* crew = nullptr;  // to work on them together; none: one after the other
};

// Algorithm 1 of Herald: each sample in turn to the worker that caches most of its keys and has room left;
// ties by seed. With threads > 1 samples and room are split and each part is allocated by itself.
void allocate_laia(const AllocationTask& task, std::span<int32_t> rank_of_sample);
// Ours: the even allocation with the fewest transmissions that `effort` sweeps over the samples find.
void allocate_anneal(const AllocationTask& task, std::span<int32_t> rank_of_sample);
// The batch cut into runs of neighbours, or dealt out by seed: what training does without a scheduler.
void allocate_contiguous(const AllocationTask& task, std::span<int32_t> rank_of_sample);
void allocate_random(const AllocationTask& task, std::span<int32_t> rank_of_sample);

// Samples of every worker when `samples` are dealt out evenly: as many as its run has where batches are cut
// into runs without a scheduler (springtide/data/shards.py).
std::vector<uint32_t> even_quota(uint32_t samples, uint32_t workers);

// Transmissions of a key, given its trainers and its owner: the counts of its plan (schedule_plan.cpp) without
// evictions.
class KeyCost {
 public:
  explicit KeyCost(const AllocationTask& task)
      : cached_(task.capacity_rows > 0),
        moved_(task.p2p == P2P::off ? 2 : 1),
        exchange_(cached_ && task.p2p == P2P::gradients ? task.p2p_trainers : 0) {}

  // One worker trains the key and keeps its row.
  int32_t sole(uint16_t owner, bool dirty, uint16_t worker) const {
    if (!cached_) return 2;
    if (owner == worker) return 0;
    return dirty ? moved_ : 1;
  }
  // Several do. Up to a few exchange values and gradients, and one keeps the row: only if none of them has it
  // does it come from outside. Else each needs the value and pushes its gradient; an owner has the value, and
  // when only it has the latest row it writes that back first, so that the servers can add to it.
  int32_t shared(uint32_t trainers, bool dirty, bool owner_trains) const {
    const auto count = static_cast<int32_t>(trainers);
    return trainers <= exchange_ ? 2 * count - 1 - owner_trains : 2 * count + dirty - owner_trains;
  }
  // What one more trainer costs who is not the owner; an owner who joins costs kOwnerSaves less.
  int32_t joins(uint32_t trainers, uint16_t owner, bool dirty, uint16_t sole_trainer) const {
    if (trainers > 1) return shared(trainers + 1, dirty, false) - shared(trainers, dirty, false);
    return shared(2, dirty, owner == sole_trainer) - sole(owner, dirty, sole_trainer);
  }
  static constexpr int32_t kOwnerSaves = 1;

 private:
  const bool cached_;
  const int32_t moved_;
  const uint32_t exchange_;  // so many trainers of a key at most do without the servers
};

// Transmissions of the whole batch.
uint64_t transmissions(const AllocationTask& task, std::span<const int32_t> rank_of_sample);

}  // namespace springtide
