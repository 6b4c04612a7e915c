// Allocation of a batch's samples to workers: the task and the policies. A policy is a deterministic function
// of the task, so all ranks compute the same result. In: schedule.h. Out: a rank per sample, equal batch
// sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"

namespace springtide {

constexpr uint16_t kNoOwner = UINT16_MAX;  // owner of a key that no worker caches
constexpr uint32_t kMostWorkers = 128;

// What may go straight from worker to worker: nothing; rows to the one that trains them next alone; or also
// values and gradients of rows that a few workers train, one of whom keeps the row.
enum class P2P : uint8_t { off = 0, rows = 1, gradients = 2 };

struct AllocationTask {
  uint32_t workers = 0;
  uint32_t samples = 0;
  // Sample i has the keys units[sample_begin[i]] … units[sample_begin[i + 1] - 1], none twice; a unit is an
  // index into what follows.
  std::span<const uint32_t> sample_begin;  // size samples + 1
  std::span<const uint32_t> units;
  std::span<const TableId> table;   // by unit
  std::span<const uint16_t> owner;  // by unit: the worker whose cache has the latest row, or kNoOwner
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
// The one with the fewest transmissions. BadInput unless the batch is tiny.
void allocate_exhaustive(const AllocationTask& task, std::span<int32_t> rank_of_sample);
// The batch cut into runs of neighbours, or dealt out by seed: what training does without a scheduler.
void allocate_contiguous(const AllocationTask& task, std::span<int32_t> rank_of_sample);
void allocate_random(const AllocationTask& task, std::span<int32_t> rank_of_sample);

// Samples of every worker when `samples` are dealt out evenly: as many as its run has where batches are cut
// into runs without a scheduler (springtide/data/shards.py).
std::vector<uint32_t> even_quota(uint32_t samples, uint32_t workers);

}  // namespace springtide
