// Allocation of a batch's samples to workers: the task and the policies. A policy is a deterministic function of the
// task, so all ranks compute the same result. In: schedule.h. Out: a rank for each sample, with equal batch sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"

namespace springtide {

constexpr uint16_t kNoWorker = UINT16_MAX;  // owner of a key that no worker caches
constexpr uint32_t kMostWorkers = 128;

// Data that workers send directly to each other. off: none. rows: a row goes to the next worker that trains it alone.
// gradients: in addition, if a few workers train a row, they exchange its values and gradients, and one of them keeps
// the row.
enum class P2P : uint8_t { off = 0, rows = 1, gradients = 2 };

struct AllocationTask {
  uint32_t workers = 0;
  uint32_t samples = 0;
  // Sample i has the distinct keys units[sample_begin[i]] … units[sample_begin[i + 1] - 1]. A unit is the number of a
  // key, and an index into the arrays below.
  std::span<const uint32_t> sample_begin;  // size samples + 1
  std::span<const uint32_t> units;
  std::span<const uint16_t> owner;  // by unit: the worker whose cache has the latest row, or kNoWorker
  std::span<const uint8_t> dirty;   // by unit: 1 if only the owner has the latest row and the servers do not
  // Which keys count for scoring. If `positions` is not empty, all samples have keys of the same tables at the same
  // positions, and `positions` lists the positions that count. Otherwise `scored` marks the units that count.
  std::span<const uint32_t> positions;
  std::span<const uint8_t> scored;  // by unit
  std::span<const uint32_t> quota;  // by worker: how many samples it gets; the sum is `samples`
  uint64_t capacity_rows = 0;       // of a worker's cache
  P2P p2p = P2P::off;
  uint32_t p2p_trainers = 0;  // P2P::gradients: if more workers than this train a key, the server sums
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t effort = 0;         // limit of the search, such as a number of sweeps; 0 means the policy's default
  uint32_t threads = 1;        // number of parts into which a policy may split the task; the result may depend on it
  ThreadPool* crew = nullptr;  // threads that work on the parts; if null, the parts run one after the other
};

// Algorithm 1 of Herald: assigns each sample in turn to the worker that caches most of its keys and has room left; the
// seed breaks ties. With threads > 1, samples and room are split into parts that are allocated independently.
void allocate_laia(const AllocationTask& task, std::span<int32_t> rank_of_sample);
// Springtide's policy: searches for the even allocation with the fewest transmissions, in `effort` sweeps over the
// samples.
void allocate_anneal(const AllocationTask& task, std::span<int32_t> rank_of_sample);
// The allocations of training without a scheduler: contiguous ranges of the batch, or random by seed.
void allocate_contiguous(const AllocationTask& task, std::span<int32_t> rank_of_sample);
void allocate_random(const AllocationTask& task, std::span<int32_t> rank_of_sample);

// Returns the number of samples of each worker in an even allocation. Training without a scheduler uses contiguous
// ranges of the same lengths (springtide/data/shards.py).
std::vector<uint32_t> even_quota(uint32_t samples, uint32_t workers);

// Number of transmissions that a key costs, given its trainers and its owner. The number equals the counts in the plan
// (schedule_plan.cpp), except for evictions.
class KeyCost {
 public:
  explicit KeyCost(const AllocationTask& task)
      : cached_(task.capacity_rows > 0),
        moved_(task.p2p == P2P::off ? 2 : 1),
        exchange_(cached_ && task.p2p == P2P::gradients ? task.p2p_trainers : 0) {}

  // For a key that one worker trains. The worker that trains the key then keeps the row.
  int32_t sole(uint16_t owner, bool dirty, uint16_t worker) const {
    if (!cached_) return 2;
    if (owner == worker) return 0;
    return dirty ? moved_ : 1;
  }
  // For a key that several workers train. If there are at most `exchange_` trainers, they exchange values and
  // gradients, and one of them keeps the row. The row comes from outside only if none of them owns it. If more workers
  // train the key, they pull the value and push their gradients. The owner already has the value. If the row is dirty,
  // the owner first writes it back, because the servers update the row.
  int32_t shared(uint32_t trainers, bool dirty, bool owner_trains) const {
    const auto count = static_cast<int32_t>(trainers);
    return trainers <= exchange_ ? 2 * count - 1 - owner_trains : 2 * count + dirty - owner_trains;
  }
  // Returns the cost of one more trainer that is not the owner. If the owner is the one that joins, the cost is lower
  // by kOwnerSaves.
  int32_t joins(uint32_t trainers, uint16_t owner, bool dirty, uint16_t sole_trainer) const {
    if (trainers > 1) return shared(trainers + 1, dirty, false) - shared(trainers, dirty, false);
    return shared(2, dirty, owner == sole_trainer) - sole(owner, dirty, sole_trainer);
  }
  static constexpr int32_t kOwnerSaves = 1;

 private:
  const bool cached_;
  const int32_t moved_;
  const uint32_t exchange_;  // most trainers of a key that may exchange gradients without servers
};

// Number of transmissions of the whole batch.
uint64_t transmissions(const AllocationTask& task, std::span<const int32_t> rank_of_sample);

}  // namespace springtide
