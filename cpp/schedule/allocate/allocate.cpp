// Static and adaptive LAIA. A key has at most one owner, so scoring a sample takes one step per key, instead of one per
// key and worker.
#include "schedule/allocate/allocate.h"

#include <algorithm>
#include <array>
#include <bitset>

#include "base/hash.h"

namespace springtide {

namespace {

// Workers that have room left, in an array for random choices.
class Room {
 public:
  Room(std::span<const uint32_t> quota) : left_(quota.begin(), quota.end()), place_(quota.size()) {
    for (uint32_t w = 0; w < quota.size(); ++w) {
      place_[w] = static_cast<uint32_t>(open_.size());
      if (left_[w] > 0) open_.push_back(w);
    }
  }
  bool has(uint32_t worker) const { return left_[worker] > 0; }
  uint32_t any(uint64_t chance) const { return open_[chance % open_.size()]; }
  void take(uint32_t worker) {
    if (--left_[worker] > 0) return;
    open_[place_[worker]] = open_.back();
    place_[open_.back()] = place_[worker];
    open_.pop_back();
  }

 private:
  std::vector<uint32_t> left_, place_, open_;
};

class Laia {
 public:
  explicit Laia(const AllocationTask& task)
      : task_(task), salt_(mix64(task.seed ^ mix64(task.step + 0x9e3779b97f4a7c15ULL))) {}

  void allocate(uint32_t first, uint32_t end, std::span<const uint32_t> quota, std::span<int32_t> out) const {
    Room room(quota);
    std::array<uint16_t, kMostWorkers> score{};
    std::array<uint16_t, kMostWorkers> touched;
    for (uint32_t i = first; i < end; ++i) {
      const uint32_t count = add_scores(i, score, touched);
      const uint32_t best = pick(room, score, {touched.data(), count}, mix64(salt_ + i));
      for (uint32_t t = 0; t < count; ++t) score[touched[t]] = 0;
      room.take(best);
      out[i] = static_cast<int32_t>(best);
    }
  }

 private:
  uint32_t add_scores(uint32_t sample, std::array<uint16_t, kMostWorkers>& score,
                      std::array<uint16_t, kMostWorkers>& touched) const {
    const uint32_t* units = task_.units.data() + task_.sample_begin[sample];
    uint32_t count = 0;
    auto add = [&](uint32_t unit) {
      const uint16_t owner = task_.owner[unit];
      if (owner == kNoWorker) return;
      if (score[owner]++ == 0) touched[count++] = owner;
    };
    if (!task_.positions.empty()) {
      for (uint32_t position : task_.positions) add(units[position]);
    } else {
      const uint32_t keys = task_.sample_begin[sample + 1] - task_.sample_begin[sample];
      for (uint32_t k = 0; k < keys; ++k) {
        if (task_.scored[units[k]]) add(units[k]);
      }
    }
    return count;
  }

  static uint32_t pick(const Room& room, const std::array<uint16_t, kMostWorkers>& score, std::span<uint16_t> touched,
                       uint64_t chance) {
    uint32_t most = 0, ties = 0;
    std::array<uint16_t, kMostWorkers> tied;
    for (uint16_t worker : touched) {
      if (!room.has(worker) || score[worker] < most) continue;
      if (score[worker] > most) {
        most = score[worker];
        ties = 0;
      }
      tied[ties++] = worker;
    }
    if (ties == 0) return room.any(chance);
    return tied[chance % ties];
  }

  const AllocationTask& task_;
  const uint64_t salt_;
};

// Divides the workers' room among the parts in turns, sample by sample, so that every part gets as much room as it has
// samples.
std::vector<uint32_t> room_between(const AllocationTask& task, uint32_t first, uint32_t end) {
  std::vector<uint32_t> room(task.workers);
  for (uint32_t w = 0; w < task.workers; ++w) {
    const auto before = [&](uint32_t i) { return i / task.workers + (w < i % task.workers ? 1 : 0); };
    room[w] = before(end) - before(first);
  }
  return room;
}

}  // namespace

void allocate_laia(const AllocationTask& task, std::span<int32_t> rank_of_sample) {
  const Laia laia(task);
  if (task.threads < 2 || task.crew == nullptr) return laia.allocate(0, task.samples, task.quota, rank_of_sample);
  task.crew->run(task.threads, [&](uint32_t part) {
    const auto cut = [&](uint32_t p) { return static_cast<uint32_t>(uint64_t{task.samples} * p / task.threads); };
    laia.allocate(cut(part), cut(part + 1), room_between(task, cut(part), cut(part + 1)), rank_of_sample);
  });
}

void allocate_contiguous(const AllocationTask& task, std::span<int32_t> rank_of_sample) {
  size_t at = 0;
  for (uint32_t w = 0; w < task.workers; ++w) {
    std::fill_n(rank_of_sample.begin() + static_cast<ptrdiff_t>(at), task.quota[w], static_cast<int32_t>(w));
    at += task.quota[w];
  }
}

void allocate_random(const AllocationTask& task, std::span<int32_t> rank_of_sample) {
  allocate_contiguous(task, rank_of_sample);
  const uint64_t salt = mix64(task.seed ^ mix64(task.step + 0x9e3779b97f4a7c15ULL));
  for (uint32_t i = task.samples; i > 1; --i) std::swap(rank_of_sample[i - 1], rank_of_sample[mix64(salt + i) % i]);
}

std::vector<uint32_t> even_quota(uint32_t samples, uint32_t workers) {
  std::vector<uint32_t> quota(workers);
  const auto begin = [&](uint64_t w) { return static_cast<uint32_t>(samples * w / workers); };
  for (uint32_t w = 0; w < workers; ++w) quota[w] = begin(w + 1) - begin(w);
  return quota;
}

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
    const bool owner_trains = owner != kNoWorker && who.test(owner);
    const size_t count = who.count();
    if (count == 0) continue;
    const uint16_t sole = owner_trains ? owner : static_cast<uint16_t>(kNoWorker - 1);
    sum += static_cast<uint64_t>(count == 1
                                     ? cost.sole(owner, task.dirty[unit] != 0, sole)
                                     : cost.shared(static_cast<uint32_t>(count), task.dirty[unit] != 0, owner_trains));
  }
  return sum;
}

}  // namespace springtide
