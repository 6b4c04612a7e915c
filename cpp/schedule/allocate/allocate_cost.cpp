#include "schedule/allocate/allocate_cost.h"

#include <algorithm>
#include <bitset>
#include <vector>

namespace springtide {

uint64_t transmissions(const AllocationTask& task, std::span<const int32_t> rank_of_sample) {
  const KeyCost cost(task);
  std::vector<std::bitset<kMostWorkers>> trainers(task.owner.size());
  for (uint32_t i = 0; i < task.samples; ++i) {
    for (uint32_t k = task.sample_begin[i]; k < task.sample_begin[i + 1]; ++k)
      trainers[task.units[k]].set(static_cast<size_t>(rank_of_sample[i]));
  }
  uint64_t sum = 0;
  for (size_t unit = 0; unit < trainers.size(); ++unit) {
    const auto& who = trainers[unit];
    const uint16_t owner = task.owner[unit];
    const bool owner_trains = owner != kNoOwner && who.test(owner);
    const size_t count = who.count();
    if (count == 0) continue;
    const uint16_t sole = owner_trains ? owner : static_cast<uint16_t>(kNoOwner - 1);
    sum += static_cast<uint64_t>(count == 1
                                     ? cost.sole(owner, task.dirty[unit] != 0, sole)
                                     : cost.shared(static_cast<uint32_t>(count), task.dirty[unit] != 0, owner_trains));
  }
  return sum;
}

// A key in more samples than one worker takes has more than one trainer. And a sample goes to one worker
// only: of the keys that it has alone, those whose owners are others move. The two kinds of keys do not
// overlap.
uint64_t transmissions_at_least(const AllocationTask& task) {
  const KeyCost cost(task);
  std::vector<uint32_t> samples_of(task.owner.size());
  for (uint32_t unit : task.units) ++samples_of[unit];
  std::vector<uint32_t> quota(task.quota.begin(), task.quota.end());
  std::sort(quota.rbegin(), quota.rend());
  uint64_t sum = 0;
  for (size_t unit = 0; unit < samples_of.size(); ++unit) {
    if (samples_of[unit] < 2) continue;
    uint32_t trainers = 0;
    for (uint32_t room = 0; trainers < quota.size() && room < samples_of[unit]; ++trainers) room += quota[trainers];
    const uint16_t owner = task.owner[unit];
    const bool dirty = task.dirty[unit] != 0;
    sum += static_cast<uint64_t>(trainers == 1 ? cost.sole(owner, dirty, owner == kNoOwner ? 0 : owner)
                                               : cost.shared(trainers, dirty, owner != kNoOwner));
  }
  for (uint32_t i = 0; i < task.samples; ++i) {
    int32_t all_move = 0;
    std::vector<int32_t> saves(task.workers);
    for (uint32_t k = task.sample_begin[i]; k < task.sample_begin[i + 1]; ++k) {
      const uint32_t unit = task.units[k];
      if (samples_of[unit] != 1) continue;
      const uint16_t owner = task.owner[unit];
      const int32_t moves = cost.sole(owner, task.dirty[unit] != 0, kNoOwner - 1);
      all_move += moves;
      if (owner != kNoOwner) saves[owner] += moves;
    }
    sum += static_cast<uint64_t>(all_move - *std::max_element(saves.begin(), saves.end()));
  }
  return sum;
}

}  // namespace springtide
