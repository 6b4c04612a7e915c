// Cost of a sample at each worker, given the positions of all others; kUnit per transmission, constants left
// out. Used by allocate_anneal.cpp.
//
// Keys of one sample only are summed once. Keys of several samples ("nets", as in hypergraph partitioning)
// are counted by worker. Keys of very many samples end up at every worker and are ignored.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/allocate/allocate.h"
#include "schedule/allocate/allocate_cost.h"

namespace springtide {

constexpr int32_t kUnit = 256;

class AnnealNets {
 public:
  explicit AnnealNets(const AllocationTask& task);

  std::span<const int32_t> alone(uint32_t sample) const { return {&alone_[size_t(sample) * stride_], stride_}; }
  void take(uint32_t sample, uint32_t worker);
  void put(uint32_t sample, uint32_t worker);
  // By worker, for a sample that is taken out while all others are in; good until the next call.
  std::span<const int32_t> costs(uint32_t sample);

 private:
  static constexpr uint32_t kLanes = 8;  // workers added up at once
  struct Net {
    uint16_t owner = kNoOwner;
    uint16_t trainers = 0;
    uint32_t sum = 0;  // of the ranks that train it: the trainer, when there is one
    bool dirty = false;
  };
  static std::vector<uint32_t> count_samples(const AllocationTask& task);

  const KeyCost cost_;
  const uint32_t stride_;  // workers, rounded up to lanes
  std::vector<Net> nets_;
  std::vector<uint16_t> samples_at_;      // [net][worker]
  std::vector<uint32_t> begin_, net_of_;  // sample i has nets net_of_[begin_[i]] … net_of_[begin_[i + 1] - 1]
  std::vector<int32_t> alone_;            // [sample][worker]
  std::vector<int32_t> costs_;
};

}  // namespace springtide
