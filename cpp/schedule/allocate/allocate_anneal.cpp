// Annealing allocator: searches for the even allocation whose plan has the fewest transmissions.
//
// The search takes out one sample after another, and computes what the sample would cost at every worker (AnnealNets).
// A heat bath then assigns the sample again, to the worker with the lowest cost plus noise. The noise decreases from
// sweep to sweep. Overfull workers cost more, and at the end capacities are enforced. Integers and a fixed number of
// sweeps give the same result on every rank.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/hash.h"
#include "schedule/allocate/allocate.h"

namespace springtide {

namespace {

constexpr uint32_t kEverywhere = 4;  // if it has this many samples per worker, a key counts as trained by every worker

constexpr int32_t kUnit = 256;
constexpr int32_t kHot = kUnit;             // noise at the first sweep, in transmissions
constexpr int32_t kCold = kUnit / 8;        // noise in the last sweep but one; the last sweep has no noise
constexpr int32_t kPrice = kUnit * 3 / 10;  // price of each sample that exceeds a worker's room
constexpr uint32_t kDefaultSweeps = 8;
constexpr uint32_t kFewestVisits = 2048;  // small batches get more sweeps, which cost little
// Small batches are also searched several times with other random numbers, and by exchanges.
constexpr uint32_t kSmallBatch = 64;
constexpr uint32_t kSmallRounds = 4;

// What a sample costs at each worker, given where all other samples are; kUnit per transmission, without constant
// terms. The costs of keys that only one sample has are summed once. Keys that several samples share ("nets") are
// counted per worker. Keys that very many samples share are ignored.
class AnnealNets {
 public:
  explicit AnnealNets(const AllocationTask& task)
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
        } else if (samples[unit] == 1 && owner != kNoWorker) {
          alone[owner] -= kUnit * cost_.sole(owner, task.dirty[unit] != 0, kNoWorker - 1);
        }
      }
      begin_[i + 1] = static_cast<uint32_t>(net_of_.size());
    }
  }

  std::span<const int32_t> alone(uint32_t sample) const { return {&alone_[size_t(sample) * stride_], stride_}; }
  void take(uint32_t sample, uint32_t worker) {
    for (uint32_t at = begin_[sample]; at < begin_[sample + 1]; ++at) {
      if (--samples_at_[size_t(net_of_[at]) * stride_ + worker] > 0) continue;
      --nets_[net_of_[at]].trainers;
      nets_[net_of_[at]].sum -= worker;
    }
  }
  void put(uint32_t sample, uint32_t worker) {
    for (uint32_t at = begin_[sample]; at < begin_[sample + 1]; ++at) {
      if (samples_at_[size_t(net_of_[at]) * stride_ + worker]++ > 0) continue;
      ++nets_[net_of_[at]].trainers;
      nets_[net_of_[at]].sum += worker;
    }
  }
  // Returns the cost at each worker for a sample that is taken out, while all others are assigned. The result is valid
  // until the next call.
  std::span<const int32_t> costs(uint32_t sample) {
    int32_t* const costs = costs_.data();
    std::copy_n(&alone_[size_t(sample) * stride_], stride_, costs);
    for (uint32_t at = begin_[sample]; at < begin_[sample + 1]; ++at) {
      const Net& net = nets_[net_of_[at]];
      const uint16_t* const samples_at = &samples_at_[size_t(net_of_[at]) * stride_];
      const int32_t joins = kUnit * cost_.joins(net.trainers, net.owner, net.dirty, static_cast<uint16_t>(net.sum));
      for (uint32_t group = 0; group < stride_; group += kLanes) {
        for (uint32_t lane = group; lane < group + kLanes; ++lane) costs[lane] += samples_at[lane] == 0 ? joins : 0;
      }
      if (net.owner != kNoWorker && samples_at[net.owner] == 0) costs[net.owner] -= kUnit * KeyCost::kOwnerSaves;
    }
    return costs_;
  }

 private:
  static constexpr uint32_t kLanes = 8;  // workers that are summed together
  struct Net {
    uint16_t owner = kNoWorker;
    uint16_t trainers = 0;
    uint32_t sum = 0;  // sum of the ranks that train the key; if there is one trainer, its rank
    bool dirty = false;
  };
  // Returns the number of samples for each unit; 0 for units that do not count.
  static std::vector<uint32_t> count_samples(const AllocationTask& task) {
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

  const KeyCost cost_;
  const uint32_t stride_;  // workers, rounded up to lanes
  std::vector<Net> nets_;
  std::vector<uint16_t> samples_at_;      // [net][worker]
  std::vector<uint32_t> begin_, net_of_;  // sample i has nets net_of_[begin_[i]] … net_of_[begin_[i + 1] - 1]
  std::vector<int32_t> alone_;            // [sample][worker]
  std::vector<int32_t> costs_;
};

// -ln(-ln u) for evenly spaced u (Gumbel noise). Choosing the best sum of score and noise draws each option with a
// probability proportional to exp(score).
std::array<int32_t, 1024> noise_table() {
  std::array<int32_t, 1024> table{};
  for (size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<int32_t>(std::lround(-std::log(-std::log((static_cast<double>(i) + 0.5) / 1024.0)) * kUnit));
  return table;
}

class Anneal {
 public:
  Anneal(const AllocationTask& task, uint64_t round, std::span<int32_t> rank_of_sample)
      : task_(task),
        nets_(task),
        rank_(rank_of_sample),
        size_(task.workers),
        price_(task.workers),
        state_(mix64(task.seed ^ mix64(task.step + 0x9e3779b97f4a7c15ULL) ^ (round << 56))) {}

  void run() {
    start();
    const uint32_t least = task_.effort ? task_.effort : kDefaultSweeps;
    const uint32_t sweeps = std::max(least, kFewestVisits / std::max(1u, task_.samples));
    for (uint32_t sweep = 0; sweep + 1 < sweeps; ++sweep) {
      const int64_t span = std::max(1u, sweeps - 2);
      const auto heat = static_cast<int32_t>(kHot - (kHot - kCold) * static_cast<int64_t>(sweep) / span);
      for (uint32_t i = 0; i < task_.samples; ++i) visit(i, heat);
    }
    for (uint32_t i = 0; i < task_.samples; ++i) visit(i, 0);
    make_even();
    swap_neighbours();
  }

 private:
  // Assigns each sample to the worker that has most of the keys that only this sample has, as long as there is room.
  void start() {
    for (uint32_t i = 0; i < task_.samples; ++i) {
      const std::span<const int32_t> cost = nets_.alone(i);
      uint32_t best = task_.workers;
      for (uint32_t w = 0, from = static_cast<uint32_t>(next() % task_.workers); w < task_.workers; ++w) {
        const uint32_t worker = from + w < task_.workers ? from + w : from + w - task_.workers;
        if (size_[worker] < task_.quota[worker] && (best == task_.workers || cost[worker] < cost[best])) best = worker;
      }
      put(i, best);
    }
  }

  void visit(uint32_t sample, int32_t heat) {
    const auto from = static_cast<uint32_t>(rank_[sample]);
    take(sample, from);
    const std::span<const int32_t> cost = nets_.costs(sample);
    uint32_t best = from;
    int64_t least = INT64_MAX;
    uint64_t word = 0;
    for (uint32_t w = 0; w < task_.workers; ++w) {
      int64_t asks = static_cast<int64_t>(cost[w] + price_[w]) * kUnit;
      if (heat > 0) {
        if (w % 6 == 0) word = next();
        asks -= static_cast<int64_t>(heat) * noise()[word & 1023];
        word >>= 10;
      } else if (w == from) {
        asks -= 1;  // if there is a tie, the sample stays where it is
      }
      if (asks < least) {
        least = asks;
        best = w;
      }
    }
    put(sample, best);
  }

  // Moves samples away from workers that have too many, the cheapest first.
  void make_even() {
    for (uint32_t w = 0; w < task_.workers; ++w) {
      while (size_[w] > task_.quota[w]) {
        uint32_t leaves = 0, enters = 0;
        int64_t least = INT64_MAX;
        for (uint32_t i = 0; i < task_.samples; ++i) {
          if (rank_[i] != static_cast<int32_t>(w)) continue;
          nets_.take(i, w);
          const std::span<const int32_t> cost = nets_.costs(i);
          for (uint32_t to = 0; to < task_.workers; ++to) {
            if (size_[to] >= task_.quota[to] || cost[to] - cost[w] >= least) continue;
            least = cost[to] - cost[w];
            leaves = i;
            enters = to;
          }
          nets_.put(i, w);
        }
        take(leaves, w);
        put(leaves, enters);
      }
    }
  }

  // Tries all exchanges of two samples until none reduces the cost. Only small batches need these exchanges, because
  // there prices guide the search badly.
  void swap_neighbours() {
    if (task_.samples > kSmallBatch) return;
    for (bool better = true; better;) {
      better = false;
      for (uint32_t i = 0; i < task_.samples; ++i) {
        for (uint32_t j = i + 1; j < task_.samples; ++j) better |= rank_[i] != rank_[j] && exchange(i, j);
      }
    }
  }

  bool exchange(uint32_t one, uint32_t other) {
    const auto a = static_cast<uint32_t>(rank_[one]), b = static_cast<uint32_t>(rank_[other]);
    nets_.take(one, a);
    std::span<const int32_t> cost = nets_.costs(one);
    const int32_t there = cost[b] - cost[a];
    nets_.put(one, b);
    nets_.take(other, b);
    cost = nets_.costs(other);
    const int32_t back = cost[a] - cost[b];
    nets_.put(other, there + back < 0 ? a : b);
    if (there + back < 0) {
      std::swap(rank_[one], rank_[other]);
      return true;
    }
    nets_.take(one, b);
    nets_.put(one, a);
    return false;
  }

  void take(uint32_t sample, uint32_t worker) {
    nets_.take(sample, worker);
    --size_[worker];
    price_[worker] -= kPrice;
  }
  void put(uint32_t sample, uint32_t worker) {
    nets_.put(sample, worker);
    rank_[sample] = static_cast<int32_t>(worker);
    ++size_[worker];
    price_[worker] += kPrice;
  }
  uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  static const std::array<int32_t, 1024>& noise() {
    static const std::array<int32_t, 1024> table = noise_table();
    return table;
  }

  const AllocationTask& task_;
  AnnealNets nets_;
  std::span<int32_t> rank_;
  std::vector<uint32_t> size_;
  std::vector<int32_t> price_;
  uint64_t state_;
};

}  // namespace

void allocate_anneal(const AllocationTask& task, std::span<int32_t> rank_of_sample) {
  Anneal(task, 0, rank_of_sample).run();
  if (task.samples > kSmallBatch) return;
  uint64_t least = transmissions(task, rank_of_sample);
  std::vector<int32_t> again(task.samples);
  for (uint64_t round = 1; round < kSmallRounds; ++round) {
    Anneal(task, round, again).run();
    const uint64_t found = transmissions(task, again);
    if (found >= least) continue;
    least = found;
    std::copy(again.begin(), again.end(), rank_of_sample.begin());
  }
}
}  // namespace springtide
