#include "schedule/allocate/anneal_nets.h"

#include <algorithm>

namespace springtide {

namespace {

constexpr uint32_t kEverywhere = 4;  // samples of a key a worker, from which on every worker has it

}  // namespace

AnnealNets::AnnealNets(const AllocationTask& task)
    : cost_(task),
      stride_((task.workers + kLanes - 1) / kLanes * kLanes),
      begin_(task.samples + 1),
      alone_(size_t(task.samples) * stride_),
      costs_(stride_) {
  const std::vector<uint32_t> samples = count_samples(task);
  const uint32_t many = std::max(kEverywhere * task.workers, 2u);
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> net_at(task.owner.size(), kNone);
  for (uint32_t unit = 0; unit < samples.size(); ++unit) {
    if (samples[unit] < 2 || samples[unit] > many) continue;
    net_at[unit] = static_cast<uint32_t>(nets_.size());
    nets_.push_back({.owner = task.owner[unit], .dirty = task.dirty[unit] != 0});
  }
  samples_at_.resize(nets_.size() * stride_);
  net_of_.reserve(task.units.size());
  for (uint32_t i = 0; i < task.samples; ++i) {
    int32_t* alone = &alone_[size_t(i) * stride_];
    for (uint32_t k = task.sample_begin[i]; k < task.sample_begin[i + 1]; ++k) {
      const uint32_t unit = task.units[k];
      const uint16_t owner = task.owner[unit];
      if (net_at[unit] != kNone) {
        net_of_.push_back(net_at[unit]);
      } else if (samples[unit] == 1 && owner != kNoOwner) {
        alone[owner] -= kUnit * cost_.sole(owner, task.dirty[unit] != 0, kNoOwner - 1);
      }
    }
    begin_[i + 1] = static_cast<uint32_t>(net_of_.size());
  }
}

// By unit; 0 for those that are not to count.
std::vector<uint32_t> AnnealNets::count_samples(const AllocationTask& task) {
  std::vector<uint32_t> samples(task.owner.size());
  if (task.positions.empty()) {
    for (uint32_t unit : task.units) samples[unit] += task.scored.empty() || task.scored[unit];
    return samples;
  }
  for (uint32_t i = 0; i < task.samples; ++i) {
    for (uint32_t position : task.positions) ++samples[task.units[task.sample_begin[i] + position]];
  }
  return samples;
}

void AnnealNets::take(uint32_t sample, uint32_t worker) {
  for (uint32_t at = begin_[sample]; at < begin_[sample + 1]; ++at) {
    if (--samples_at_[size_t(net_of_[at]) * stride_ + worker] > 0) continue;
    --nets_[net_of_[at]].trainers;
    nets_[net_of_[at]].sum -= worker;
  }
}

void AnnealNets::put(uint32_t sample, uint32_t worker) {
  for (uint32_t at = begin_[sample]; at < begin_[sample + 1]; ++at) {
    if (samples_at_[size_t(net_of_[at]) * stride_ + worker]++ > 0) continue;
    ++nets_[net_of_[at]].trainers;
    nets_[net_of_[at]].sum += worker;
  }
}

std::span<const int32_t> AnnealNets::costs(uint32_t sample) {
  int32_t* const costs = costs_.data();
  std::copy_n(&alone_[size_t(sample) * stride_], stride_, costs);
  for (uint32_t at = begin_[sample]; at < begin_[sample + 1]; ++at) {
    const Net& net = nets_[net_of_[at]];
    const uint16_t* const samples_at = &samples_at_[size_t(net_of_[at]) * stride_];
    const int32_t joins = kUnit * cost_.joins(net.trainers, net.owner, net.dirty, static_cast<uint16_t>(net.sum));
    for (uint32_t group = 0; group < stride_; group += kLanes) {
      for (uint32_t lane = group; lane < group + kLanes; ++lane) costs[lane] += samples_at[lane] == 0 ? joins : 0;
    }
    if (net.owner != kNoOwner && samples_at[net.owner] == 0) costs[net.owner] -= kUnit * KeyCost::kOwnerSaves;
  }
  return costs_;
}

}  // namespace springtide
