// The scheduler: assigns the samples of the next batch to workers (allocate.h) and plans what every worker's cache
// sends and pulls (cache_plan.h). Every rank runs the scheduler on the same batches and gets the same result.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_plan.h"
#include "schedule/allocate/allocate.h"
#include "schedule/directory.h"
#include "schedule/schedule_batch.h"
#include "schedule/table_profile.h"

namespace springtide {

struct SchedulerOptions {
  uint32_t workers = 1;
  uint64_t capacity_rows = 0;   // capacity of each worker's cache
  std::string policy = "laia";  // allocate.h; by name in policies()
  uint64_t seed = 0;
  P2P p2p = P2P::off;
  uint32_t p2p_trainers = 4;  // most workers that exchange gradients of a row; if there are more, the server sums
  bool on_demand = true;  // false: every trained row is written back after its step, as if the next batch were unknown
  uint32_t threads = 1;
  uint32_t profile_every = 8;  // profile the keys of every n-th batch; 0 means never
};

// Options of one call. All ranks must use the same options.
struct ScheduleWish {
  std::span<const TableId> scored = {};  // tables whose keys count in the allocation; empty: all tables
  // how many of these tables to use, those with the highest degree of infrequency first
  uint32_t best_tables = UINT32_MAX;
  uint32_t effort = 0;  // effort of the policy; 0 means the policy's default
};

enum class Stage : uint8_t { read, profile, look_up, allocate, plan, snapshot };
constexpr size_t kStages = 6;

struct Scheduled {
  uint64_t step = 0;
  std::vector<int32_t> rank_of_sample;
  std::vector<std::shared_ptr<CachePlan>> plans;  // by rank
  std::array<double, kStages> seconds{};          // by Stage
  uint64_t distinct = 0;                          // keys of the batch
};

// A set of workers, one bit each.
using Trainers = std::array<uint64_t, kMostWorkers / 64>;

// The allocation that a policy would choose for a batch, and its number of transmissions without evictions.
struct Considered {
  std::vector<int32_t> rank_of_sample;
  uint64_t transmissions = 0;
};

using AllocationPolicy = std::function<void(const AllocationTask&, std::span<int32_t>)>;
AllocationPolicy policy_called(const std::string& name);  // for an unknown name, throws BadInput with the known names

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Schedules the next batch, for step() + 1. Assumes that all earlier plans are executed in order.
  Scheduled schedule(std::span<const BatchFeature> features, uint32_t samples, const ScheduleWish& wish = {});
  // Returns what `policy` would do with the batch, without scheduling it.
  Considered consider(std::span<const BatchFeature> features, uint32_t samples, const std::string& policy,
                      const ScheduleWish& wish = {});
  // Call this function after a flush. All rows trained up to `step` are then on the servers. The plan of the next step
  // may exist already.
  void flushed(uint64_t step);
  // Call this function when all caches are empty, as after a return to a checkpoint. The step number is not reset.
  void clear();

  uint64_t step() const { return step_; }
  const SchedulerOptions& options() const { return options_; }
  const Directory& directory() const { return directory_; }
  double infrequency(TableId table) const { return profile_.infrequency(table, directory_); }
  bool dirty(const Directory::Row& row) const { return row.trained > flushed_; }

 private:
  void look_up();
  void look_up(size_t first, size_t end);  // units
  AllocationTask allocate(const AllocationPolicy& policy, uint64_t step, const ScheduleWish& wish,
                          std::span<int32_t> rank_of_sample);
  void find_trainers(std::span<const int32_t> rank_of_sample);
  void choose_keepers();
  void choose_homes();
  bool exchanged(uint32_t unit) const;
  template <class Do>
  void each_trainer(uint32_t unit, Do act) const {  // with P2P::gradients; in rank order
    for (uint32_t word = 0; word < trainers_[unit].size(); ++word) {
      for (uint64_t bits = trainers_[unit][word]; bits != 0; bits &= bits - 1)
        act(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  void make_plans();
  void plan_trained(uint32_t worker);
  void plan_owned();
  void plan_exchange(uint32_t unit);
  void update_directory();
  void evict(uint32_t worker, uint64_t room_for);

  static constexpr size_t kAhead = 16;                // number of keys for which memory is prefetched ahead of its use
  static constexpr uint16_t kShared = kNoWorker - 1;  // several workers train the key

  const SchedulerOptions options_;
  const AllocationPolicy policy_;
  ThreadPool pool_;
  Directory directory_;
  ScheduleBatch batch_;
  TableProfile profile_;
  uint64_t step_ = 0, flushed_ = 0;
  std::vector<PlanKeys> last_holds_;  // by worker, unless on_demand: rows that the next plan writes back
  // For the current batch, by unit.
  std::vector<RowAt> at_;
  std::vector<uint16_t> owner_;
  std::vector<uint8_t> dirty_;
  std::vector<uint16_t> trainer_;   // the only trainer, or kShared
  std::vector<uint16_t> keeper_;    // the trainer that caches the row after the step; otherwise kNoWorker
  std::vector<Trainers> trainers_;  // with P2P::gradients
  std::vector<uint8_t> scored_;
  std::vector<uint32_t> positions_, quota_;
  // By worker: the units that the worker trains, those of them that are already in its cache, and those that enter its
  // cache.
  std::vector<std::vector<uint32_t>> trains_, hits_, enters_;
  std::vector<uint64_t> room_;
  std::vector<std::shared_ptr<CachePlan>> plans_;
};

}  // namespace springtide
