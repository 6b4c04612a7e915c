// The trainers of each key after allocation, and which of them keeps its row: the only one, or with
// P2P::gradients one of a few. Next: schedule_plan.cpp.
#include <algorithm>
#include <bit>

#include "schedule/schedule.h"

namespace springtide {

// Worker by worker, so that a key is new to a worker when it was not the last to name it.
void Scheduler::find_trainers(std::span<const int32_t> rank_of_sample) {
  std::vector<uint32_t> begin(options_.workers + 1), samples(rank_of_sample.size());
  for (int32_t rank : rank_of_sample) ++begin[static_cast<size_t>(rank) + 1];
  for (uint32_t w = 0; w < options_.workers; ++w) begin[w + 1] += begin[w];
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (uint32_t i = 0; i < rank_of_sample.size(); ++i) samples[next[static_cast<size_t>(rank_of_sample[i])]++] = i;

  trainer_.assign(batch_.size(), kNoOwner);
  std::vector<uint16_t> last(batch_.size(), kNoOwner);
  const auto units = batch_.units();
  const auto sample_begin = batch_.sample_begin();
  for (uint32_t w = 0; w < options_.workers; ++w) {
    trains_[w].clear();
    for (uint32_t s = begin[w]; s < begin[w + 1]; ++s) {
      for (uint32_t k = sample_begin[samples[s]]; k < sample_begin[samples[s] + 1]; ++k) {
        const uint32_t unit = units[k];
        if (last[unit] == w) continue;
        last[unit] = static_cast<uint16_t>(w);
        trainer_[unit] = trainer_[unit] == kNoOwner ? static_cast<uint16_t>(w) : kShared;
        trains_[w].push_back(unit);
      }
    }
  }
}

// Rows that are where they are trained stay there; then those that one worker trains alone enter its cache
// while there is room; then those that a few train find a home.
void Scheduler::choose_keepers() {
  keeper_.assign(batch_.size(), kNoOwner);
  for (uint32_t w = 0; w < options_.workers; ++w) {
    hits_[w].clear();
    enters_[w].clear();
  }
  if (options_.p2p == P2P::gradients) {
    trainers_.assign(batch_.size(), {});
    for (uint32_t w = 0; w < options_.workers; ++w) {
      for (uint32_t unit : trains_[w]) trainers_[unit][w / 64] |= uint64_t{1} << w % 64;
    }
  }
  for (uint32_t w = 0; w < options_.workers; ++w) {
    for (uint32_t unit : trains_[w]) {
      if (owner_[unit] != w || (trainer_[unit] != w && !exchanged(unit))) continue;
      keeper_[unit] = static_cast<uint16_t>(w);
      hits_[w].push_back(unit);
    }
    room_[w] = options_.capacity_rows - hits_[w].size();
    for (uint32_t unit : trains_[w]) {
      if (trainer_[unit] != w || owner_[unit] == w) continue;
      if (enters_[w].size() == room_[w]) break;
      keeper_[unit] = static_cast<uint16_t>(w);
      enters_[w].push_back(unit);
    }
  }
  if (options_.p2p == P2P::gradients) choose_homes();
}

// Few enough workers train it that they send each other what the server would sum.
bool Scheduler::exchanged(uint32_t unit) const {
  if (options_.p2p != P2P::gradients || trainer_[unit] != kShared) return false;
  const Trainers& all = trainers_[unit];
  int count = 0;
  for (uint64_t word : all) count += std::popcount(word);
  return static_cast<uint32_t>(count) <= options_.p2p_trainers;
}

// A row whose owner is not among its trainers goes to the one of them that keeps fewest such rows, so that no
// worker has to sum for all.
void Scheduler::choose_homes() {
  std::vector<uint32_t> homes(options_.workers);
  for (uint32_t w = 0; w < options_.workers; ++w) {
    for (uint32_t unit : hits_[w]) homes[w] += trainer_[unit] == kShared;
  }
  for (uint32_t unit = 0; unit < batch_.size(); ++unit) {
    if (keeper_[unit] != kNoOwner || !exchanged(unit)) continue;
    uint32_t home = kNoOwner;
    each_trainer(unit, [&](uint32_t w) {
      if (enters_[w].size() < room_[w] && (home == kNoOwner || homes[w] < homes[home])) home = w;
    });
    if (home == kNoOwner) continue;
    keeper_[unit] = static_cast<uint16_t>(home);
    enters_[home].push_back(unit);
    ++homes[home];
  }
}

}  // namespace springtide
