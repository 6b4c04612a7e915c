// Plans that are legal and otherwise made at random: which keys a rank trains, what fits, what goes from rank
// to rank. In: a seed. Out: per step and rank the keys with a plan. The schedules that jobs run by:
// schedule.h.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cache_plan.h"

namespace springtide {

using Pair = std::pair<TableId, Key>;

// Unique (table, key) pairs of each rank in one step.
inline std::vector<std::vector<Pair>> random_batch(std::mt19937_64& random, uint32_t ranks, size_t keys,
                                                   TableId tables, uint64_t key_space) {
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

// Who has which row, as a scheduler would know it.
class RandomPlans {
 public:
  RandomPlans(uint32_t ranks, size_t capacity, uint64_t seed, bool p2p)
      : capacity_(capacity), p2p_(p2p), random_(seed), held_(ranks) {}

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
    std::vector<std::set<Pair>> wanted(ranks);  // sole rows that this rank is to hold
    for (const auto& [pair, who] : trainers)
      if (who.size() == 1 && wanted[who[0]].size() < capacity_ && (has(who[0], pair) || random_() % 8 != 0))
        wanted[who[0]].insert(pair);
    for (uint32_t r = 0; r < ranks; ++r) leave_and_pass(plans, r, trainers, wanted);
    for (uint32_t r = 0; r < ranks; ++r) hold(plans, r, batch[r], trainers, wanted[r]);
    for (uint32_t r = 0; r < ranks; ++r) make_room(plans[r], r, wanted[r]);
    for (uint32_t r = 0; r < ranks; ++r) held_[r].insert(wanted[r].begin(), wanted[r].end());
    return plans;
  }

 private:
  bool has(uint32_t rank, const Pair& pair) const { return held_[rank].contains(pair); }
  static void add(PlanKeys& to, const Pair& pair) { to.add(pair.first, pair.second); }
  static PlanKeys& with(std::vector<PeerRows>& all, uint32_t peer) {
    for (PeerRows& one : all)
      if (one.peer == peer) return one.rows;
    all.push_back({peer, {}});
    return all.back().rows;
  }

  // Rows held here that are trained by others too, or by another alone, or here without being held on.
  void leave_and_pass(std::vector<CachePlan>& plans, uint32_t r,
                      const std::map<Pair, std::vector<uint32_t>>& trainers,
                      const std::vector<std::set<Pair>>& wanted) {
    const std::set<Pair> before = held_[r];
    for (const Pair& pair : before) {
      const auto found = trainers.find(pair);
      if (found == trainers.end() || wanted[r].contains(pair)) continue;
      const std::vector<uint32_t>& who = found->second;
      const bool mine = std::find(who.begin(), who.end(), r) != who.end();
      const bool straight =
          p2p_ && who.size() == 1 && !mine && wanted[who[0]].contains(pair) && random_() % 4 != 0;
      if (straight) {
        add(with(plans[r].sends, who[0]), pair);
        add(with(plans[who[0]].receives, r), pair);
        received_.insert(pair);
      } else {
        add(plans[r].write_back, pair);
      }
      if (mine) add(plans[r].pass_hit, pair);
      add(plans[r].drop, pair);
      held_[r].erase(pair);
      passed_.insert({r, pair});
    }
  }

  void hold(std::vector<CachePlan>& plans, uint32_t r, const std::vector<Pair>& own,
            const std::map<Pair, std::vector<uint32_t>>&, const std::set<Pair>& wanted) {
    for (const Pair& pair : own) {
      if (has(r, pair)) {
        add(plans[r].hold_hit, pair);
      } else if (wanted.contains(pair)) {
        if (received_.erase(pair) == 0) add(plans[r].hold_pull, pair);
      } else if (!passed_.contains({r, pair})) {
        add(plans[r].pass_pull, pair);
      }
    }
    std::erase_if(passed_, [r](const auto& one) { return one.first == r; });
  }

  void make_room(CachePlan& plan, uint32_t r, const std::set<Pair>& wanted) {
    size_t fresh = 0;
    std::vector<Pair> others;
    for (const Pair& pair : wanted) fresh += has(r, pair) ? 0 : 1;
    for (const Pair& pair : held_[r])
      if (!wanted.contains(pair)) others.push_back(pair);
    while (held_[r].size() + fresh > capacity_) {
      const size_t at = random_() % others.size();
      add(plan.write_back, others[at]);
      add(plan.drop, others[at]);
      held_[r].erase(others[at]);
      others.erase(others.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  size_t capacity_;
  bool p2p_;
  std::mt19937_64 random_;
  uint64_t step_ = 0;
  std::vector<std::set<Pair>> held_;
  std::set<Pair> received_;
  std::set<std::pair<uint32_t, Pair>> passed_;
};

}  // namespace springtide
