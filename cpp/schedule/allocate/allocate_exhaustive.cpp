// Optimal allocation by branch and bound, for small batches: the baseline for other policies. Starts from the
// annealer's result.
#include <algorithm>
#include <cmath>
#include <string>

#include "schedule/allocate/allocate.h"

namespace springtide {

namespace {

constexpr double kMostAllocations = 5e8;  // of 12 workers with one sample each

class Exhaustive {
 public:
  Exhaustive(const AllocationTask& task, std::span<int32_t> best)
      : task_(task),
        cost_(task),
        best_(best),
        rank_(task.samples),
        room_(task.quota.begin(), task.quota.end()),
        samples_at_(task.owner.size() * task.workers),
        trainers_(task.owner.size()) {}

  void run() {
    allocate_anneal(task_, best_);
    least_ = static_cast<int64_t>(transmissions(task_, best_));
    bound_rest();
    place(0, 0);
  }

 private:
  // What the keys that only sample i has cost at least, summed from the last sample on.
  void bound_rest() {
    std::vector<uint32_t> samples(task_.owner.size());
    for (uint32_t unit : task_.units) ++samples[unit];
    rest_.assign(task_.samples + 1, 0);
    for (uint32_t i = task_.samples; i-- > 0;) {
      std::vector<int64_t> at(task_.workers);
      for (uint32_t k = task_.sample_begin[i]; k < task_.sample_begin[i + 1]; ++k) {
        const uint32_t unit = task_.units[k];
        if (samples[unit] > 1) continue;
        for (uint32_t w = 0; w < task_.workers; ++w)
          at[w] += cost_.sole(task_.owner[unit], task_.dirty[unit] != 0, static_cast<uint16_t>(w));
      }
      rest_[i] = rest_[i + 1] + *std::min_element(at.begin(), at.end());
    }
  }

  void place(uint32_t sample, int64_t so_far) {
    if (so_far + rest_[sample] >= least_) return;
    if (sample == task_.samples) {
      least_ = so_far;
      std::copy(rank_.begin(), rank_.end(), best_.begin());
      return;
    }
    for (uint32_t w = 0; w < task_.workers; ++w) {
      if (room_[w] == 0) continue;
      --room_[w];
      rank_[sample] = static_cast<int32_t>(w);
      place(sample + 1, so_far + put(sample, w));
      take(sample, w);
      ++room_[w];
    }
  }

  int64_t put(uint32_t sample, uint32_t worker) {
    int64_t more = 0;
    for (uint32_t k = task_.sample_begin[sample]; k < task_.sample_begin[sample + 1]; ++k) {
      const uint32_t unit = task_.units[k];
      uint32_t& here = samples_at_[size_t(unit) * task_.workers + worker];
      const int64_t before = now(unit);
      if (here++ > 0) continue;
      ++trainers_[unit];
      more += now(unit) - before;
    }
    return more;
  }
  void take(uint32_t sample, uint32_t worker) {
    for (uint32_t k = task_.sample_begin[sample]; k < task_.sample_begin[sample + 1]; ++k) {
      const uint32_t unit = task_.units[k];
      if (--samples_at_[size_t(unit) * task_.workers + worker] == 0) --trainers_[unit];
    }
  }
  int64_t now(uint32_t unit) const {
    if (trainers_[unit] == 0) return 0;
    const uint16_t owner = task_.owner[unit];
    const bool dirty = task_.dirty[unit] != 0;
    const bool owner_trains = owner != kNoWorker && samples_at_[size_t(unit) * task_.workers + owner] > 0;
    if (trainers_[unit] > 1) return cost_.shared(trainers_[unit], dirty, owner_trains);
    return cost_.sole(owner, dirty, owner_trains ? owner : static_cast<uint16_t>(kNoWorker - 1));
  }

  const AllocationTask& task_;
  const KeyCost cost_;
  std::span<int32_t> best_;
  std::vector<int32_t> rank_;
  std::vector<uint32_t> room_;
  std::vector<uint32_t> samples_at_;  // [unit][worker]
  std::vector<uint32_t> trainers_;    // by unit
  std::vector<int64_t> rest_;
  int64_t least_ = 0;
};

}  // namespace

void allocate_exhaustive(const AllocationTask& task, std::span<int32_t> rank_of_sample) {
  double ways = std::lgamma(task.samples + 1.0);
  for (uint32_t room : task.quota) ways -= std::lgamma(room + 1.0);
  if (ways > std::log(kMostAllocations))
    throw BadInput("policy 'exhaustive' looks at every allocation: " + std::to_string(task.samples) + " samples for " +
                   std::to_string(task.workers) +
                   " workers have too many; take a batch of one sample a worker and 12 workers at most, or policy "
                   "'anneal'");
  Exhaustive(task, rank_of_sample).run();
}

}  // namespace springtide
