// What an allocation costs: transmissions of one key, given who trains it and who has it.
// In: a task (allocate.h). Out: counts that equal those of the plan that schedule_plan.cpp makes, evictions
// left out: they depend on the order of the caches and hardly on the allocation. Next: allocate_anneal.cpp
// and allocate_exhaustive.cpp, which look for the allocation with the smallest sum.
#pragma once

#include <cstdint>
#include <span>

#include "allocate.h"

namespace springtide {

class KeyCost {
 public:
  explicit KeyCost(const AllocationTask& task) : cached_(task.capacity_rows > 0), moved_(task.p2p ? 1 : 2) {}

  // One worker trains the key and keeps its row.
  int32_t sole(uint16_t owner, bool dirty, uint16_t worker) const {
    if (!cached_) return 2;
    if (owner == worker) return 0;
    return dirty ? moved_ : 1;
  }
  // Several do: each needs the value and pushes its gradient; an owner has the value, and when only it has
  // the latest row it writes that back first, so that the servers can add to it.
  int32_t shared(uint32_t trainers, bool dirty, bool owner_trains) const {
    return static_cast<int32_t>(2 * trainers) + dirty - owner_trains;
  }
  // What one more trainer of a key costs that `sole_trainer` trains alone, when that one is not the owner. An
  // owner who joins costs 1 less, here and among several.
  int32_t second(uint16_t owner, bool dirty, uint16_t sole_trainer) const {
    return shared(2, dirty, owner == sole_trainer) - sole(owner, dirty, sole_trainer);
  }
  static constexpr int32_t kThird = 2;       // one more trainer of a key that several train
  static constexpr int32_t kOwnerSaves = 1;  // of either, when it is the owner

 private:
  const bool cached_;
  const int32_t moved_;
};

// Transmissions of the whole batch.
uint64_t transmissions(const AllocationTask& task, std::span<const int32_t> rank_of_sample);
// No allocation needs fewer: every key trained where it is cheapest, by as few workers as have room for its
// samples.
uint64_t transmissions_at_least(const AllocationTask& task);

}  // namespace springtide
