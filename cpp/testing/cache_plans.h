// Plans that are legal and otherwise made at random: which keys a rank trains, what fits, what goes from rank to rank.
// In: a seed. Out: per step and rank the keys with a plan. The schedules that jobs run by: schedule.h.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cache/cache_plan.h"

namespace springtide {

using Pair = std::pair<TableId, Key>;

// Unique (table, key) pairs of each rank in one step.
inline std::vector<std::vector<Pair>> random_batch(std::mt19937_64& random, uint32_t ranks, size_t keys, TableId tables,
                                                   uint64_t key_space) {
  std::vector<std::vector<Pair>> batch(ranks);
  for (auto& own : batch) {
    std::set<Pair> drawn;
    for (size_t i = 0; i < keys; ++i) {
      const uint64_t key = std::min(random() % key_space, random() % key_space);  // some are common
      drawn.emplace(static_cast<TableId>(random() % tables), static_cast<Key>(key) - 3);
    }
    own.assign(drawn.begin(), drawn.end());
  }
  return batch;
}

// How much goes from rank to rank.
enum class Straight : uint8_t { nothing, rows, gradients };

// Who has which row, as a scheduler would know it.
class RandomPlans {
 public:
  RandomPlans(uint32_t ranks, size_t capacity, uint64_t seed, Straight straight)
      : capacity_(capacity), straight_(straight), random_(seed), held_(ranks) {}

  // The plans of the step in which rank r trains batch[r].
  std::vector<CachePlan> next(const std::vector<std::vector<Pair>>& batch) {
    const auto ranks = static_cast<uint32_t>(held_.size());
    std::vector<CachePlan> plans(ranks);
    ++step_;
    std::map<Pair, std::vector<uint32_t>> trainers;
    for (uint32_t r = 0; r < ranks; ++r) {
      plans[r].step = step_;
      plans[r].rank = r;
      for (const Pair& pair : batch[r]) trainers[pair].push_back(r);
    }
    std::map<Pair, uint32_t> keeper;
    std::vector<std::set<Pair>> kept(ranks);
    for (const auto& [pair, who] : trainers) {
      const uint32_t rank = choose(pair, who, kept);
      if (rank == ranks) continue;
      keeper[pair] = rank;
      kept[rank].insert(pair);
    }
    std::set<std::pair<uint32_t, Pair>> came;  // rows, or their values, that a rank has without asking servers
    for (uint32_t r = 0; r < ranks; ++r) part_with(plans, r, trainers, keeper, came);
    for (const auto& [pair, who] : trainers) {
      const auto home = keeper.find(pair);
      for (const uint32_t r : who) {
        const bool keeps = home != keeper.end() && home->second == r;
        if (keeps && held_[r].contains(pair)) {
          add(plans[r].hold_hit, pair);
        } else if (!came.contains({r, pair})) {
          add(keeps ? plans[r].hold_pull : plans[r].pass_pull, pair);
        }
        if (keeps || home == keeper.end()) continue;
        add(with(plans[r].gradient_sends, home->second), pair);
        add(with(plans[home->second].gradient_receives, r), pair);
      }
    }
    for (uint32_t r = 0; r < ranks; ++r) reserve_more(plans[r], r, kept[r]);
    for (uint32_t r = 0; r < ranks; ++r) held_[r].insert(kept[r].begin(), kept[r].end());
    return plans;
  }

 private:
  static void add(PlanKeys& to, const Pair& pair) { to.add(pair.first, pair.second); }
  static PlanKeys& with(std::vector<PeerRows>& all, uint32_t peer) {
    for (PeerRows& one : all)
      if (one.peer == peer) return one.rows;
    all.push_back({peer, {}});
    return all.back().rows;
  }

  // Who keeps the row after this step; the number of ranks: nobody.
  uint32_t choose(const Pair& pair, const std::vector<uint32_t>& who, const std::vector<std::set<Pair>>& kept) {
    const auto ranks = static_cast<uint32_t>(held_.size());
    if (who.size() > 1 && (straight_ != Straight::gradients || random_() % 3 == 0)) return ranks;
    if (random_() % 8 == 0) return ranks;
    uint32_t rank = who[random_() % who.size()];
    for (const uint32_t one : who)
      if (held_[one].contains(pair) && random_() % 4 != 0) rank = one;
    return kept[rank].size() < capacity_ ? rank : ranks;
  }

  // Rows held here that are trained by others, or here without being kept.
  void part_with(std::vector<CachePlan>& plans, uint32_t r, const std::map<Pair, std::vector<uint32_t>>& trainers,
                 const std::map<Pair, uint32_t>& keeper, std::set<std::pair<uint32_t, Pair>>& came) {
    const std::set<Pair> before = held_[r];
    for (const Pair& pair : before) {
      const auto found = trainers.find(pair);
      if (found == trainers.end()) continue;
      const auto home = keeper.find(pair);
      const bool keeps = home != keeper.end() && home->second == r;
      const bool goes = keeps || (straight_ != Straight::nothing && home != keeper.end() && random_() % 4 != 0);
      for (const uint32_t other : found->second) {
        if (!goes || other == r) continue;
        const bool image = !keeps && other == home->second;
        if (!image && random_() % 8 == 0 && !keeps) continue;  // pulled from the server, if it is written there
        add(with(image ? plans[r].sends : plans[r].value_sends, other), pair);
        add(with(image ? plans[other].receives : plans[other].value_receives, r), pair);
        came.insert({other, pair});
      }
      if (keeps) continue;
      const bool all_came = std::all_of(found->second.begin(), found->second.end(),
                                        [&](uint32_t other) { return other == r || came.contains({other, pair}); });
      if (!goes || !all_came) add(plans[r].write_back, pair);
      if (std::find(found->second.begin(), found->second.end(), r) != found->second.end()) {
        add(plans[r].pass_hit, pair);
        came.insert({r, pair});
      }
      add(plans[r].drop, pair);
      held_[r].erase(pair);
    }
  }

  void reserve_more(CachePlan& plan, uint32_t r, const std::set<Pair>& kept) {
    size_t fresh = 0;
    std::vector<Pair> others;
    for (const Pair& pair : kept) fresh += held_[r].contains(pair) ? 0 : 1;
    for (const Pair& pair : held_[r])
      if (!kept.contains(pair)) others.push_back(pair);
    while (held_[r].size() + fresh > capacity_) {
      const size_t at = random_() % others.size();
      add(plan.write_back, others[at]);
      add(plan.drop, others[at]);
      held_[r].erase(others[at]);
      others.erase(others.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  size_t capacity_;
  Straight straight_;
  std::mt19937_64 random_;
  uint64_t step_ = 0;
  std::vector<std::set<Pair>> held_;
};

}  // namespace springtide
