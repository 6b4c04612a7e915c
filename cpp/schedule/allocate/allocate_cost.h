// Cost of an allocation: transmissions per key, given its trainers and its owner. Equals the counts of the
// plan from schedule_plan.cpp without evictions, which hardly depend on the allocation. Used by
// allocate_anneal.cpp and allocate_exhaustive.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "schedule/allocate/allocate.h"

namespace springtide {

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
// No allocation needs fewer: every key trained where it is cheapest, by as few workers as have room for its
// samples.
uint64_t transmissions_at_least(const AllocationTask& task);

}  // namespace springtide
