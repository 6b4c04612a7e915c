// The plan of a step and the directory after it. Algorithm 2 of Herald: a row goes to the servers when
// another worker than its owner trains it next, and not before; here also when it is evicted, and from worker
// to worker where that is one transmission instead of two.
#include <algorithm>

#include "schedule.h"

namespace springtide {

namespace {

constexpr uint16_t kShared = kNobody - 1;  // several workers train the key
constexpr uint16_t kPassed = kNobody - 2;  // one does, and has no room to keep it

}  // namespace

// Worker by worker, so that a key is new to a worker when it was not the last to name it.
void Scheduler::find_trainers(std::span<const int32_t> rank_of_sample) {
  trainer_.assign(batch_.size(), kNobody);
  std::vector<uint32_t> begin(options_.workers + 1), samples(rank_of_sample.size());
  for (int32_t rank : rank_of_sample) ++begin[static_cast<size_t>(rank) + 1];
  for (uint32_t w = 0; w < options_.workers; ++w) begin[w + 1] += begin[w];
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (uint32_t i = 0; i < rank_of_sample.size(); ++i)
    samples[next[static_cast<size_t>(rank_of_sample[i])]++] = i;

  std::vector<uint16_t> last(batch_.size(), kNobody);
  const auto units = batch_.units();
  const auto sample_begin = batch_.sample_begin();
  for (uint32_t w = 0; w < options_.workers; ++w) {
    trains_[w].clear();
    for (uint32_t s = begin[w]; s < begin[w + 1]; ++s) {
      for (uint32_t k = sample_begin[samples[s]]; k < sample_begin[samples[s] + 1]; ++k) {
        const uint32_t unit = units[k];
        if (last[unit] == w) continue;
        last[unit] = static_cast<uint16_t>(w);
        trainer_[unit] = trainer_[unit] == kNobody ? static_cast<uint16_t>(w) : kShared;
        trains_[w].push_back(unit);
      }
    }
  }
}

void Scheduler::make_plans() {
  for (uint32_t w = 0; w < options_.workers; ++w) {
    plans_[w] = std::make_shared<CachePlan>();
    plans_[w]->step = step_;
    plans_[w]->rank = w;
    if (!options_.on_demand) {
      if (flushed_ + 1 < step_) plans_[w]->write_back = std::move(last_holds_[w]);
      last_holds_[w] = {};
    }
  }
  if (!options_.on_demand) {
    flushed_ = step_ - 1;
    std::fill(dirty_.begin(), dirty_.end(), 0);
  }
  for (uint32_t w = 0; w < options_.workers; ++w) plan_trained(w);
  plan_owned();
}

// What the worker finds, asks for and keeps.
void Scheduler::plan_trained(uint32_t worker) {
  CachePlan& plan = *plans_[worker];
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  hits_[worker].clear();
  enters_[worker].clear();
  for (uint32_t unit : trains_[worker]) {
    if (trainer_[unit] == worker && owner_[unit] == worker) hits_[worker].push_back(unit);
  }
  const uint64_t room = options_.capacity_rows - hits_[worker].size();
  for (uint32_t unit : trains_[worker]) {
    const bool cached = owner_[unit] == worker;
    if (trainer_[unit] != worker) {
      (cached ? plan.pass_hit : plan.pass_pull).add(tables[unit], keys[unit]);
    } else if (cached) {
      plan.hold_hit.add(tables[unit], keys[unit]);
    } else if (enters_[worker].size() == room) {
      trainer_[unit] = kPassed;
      plan.pass_pull.add(tables[unit], keys[unit]);
    } else {
      enters_[worker].push_back(unit);
      if (options_.p2p && dirty_[unit]) continue;  // it comes from its owner: plan_owned
      plan.hold_pull.add(tables[unit], keys[unit]);
    }
  }
  if (options_.on_demand) return;
  PlanKeys& holds = last_holds_[worker];
  for (const auto* list : {&hits_[worker], &enters_[worker]}) {
    for (uint32_t unit : *list) holds.add(tables[unit], keys[unit]);
  }
}

// What owners give up: rows that someone else trains, too or instead.
void Scheduler::plan_owned() {
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  for (uint32_t unit = 0; unit < batch_.size(); ++unit) {
    const uint16_t owner = owner_[unit], trainer = trainer_[unit];
    if (owner == kNobody || owner == trainer) continue;
    CachePlan& plan = *plans_[owner];
    plan.drop.add(tables[unit], keys[unit]);
    if (!dirty_[unit]) continue;
    if (options_.p2p && trainer < kPassed) {
      between(plan.sends, trainer).rows.add(tables[unit], keys[unit]);
      between(plans_[trainer]->receives, owner).rows.add(tables[unit], keys[unit]);
    } else {
      plan.write_back.add(tables[unit], keys[unit]);
    }
  }
}

PeerRows& Scheduler::between(std::vector<PeerRows>& all, uint32_t peer) {
  auto at = std::lower_bound(all.begin(), all.end(), peer,
                             [](const PeerRows& one, uint32_t p) { return one.peer < p; });
  if (at == all.end() || at->peer != peer) at = all.insert(at, PeerRows{peer, {}});
  return *at;
}

// The caches as they are after the step: rows given up leave, trained ones become the youngest, and room for
// the new ones is made among those that the batch does not name.
void Scheduler::update_directory() {
  for (uint32_t unit = 0; unit < batch_.size(); ++unit) {
    if (owner_[unit] == kNobody) continue;
    directory_.unlink(at_[unit]);
    if (trainer_[unit] >= kPassed) directory_.forget(at_[unit]);
  }
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  const auto hashes = batch_.hashes();
  for (uint32_t w = 0; w < options_.workers; ++w) {
    evict(w, hits_[w].size() + enters_[w].size());
    for (uint32_t unit : hits_[w]) directory_.link(at_[unit], w, step_);
    for (uint32_t unit : enters_[w]) {
      if (owner_[unit] == kNobody) at_[unit] = directory_.add(tables[unit], keys[unit], hashes[unit], w);
      directory_.link(at_[unit], w, step_);
    }
  }
}

void Scheduler::evict(uint32_t worker, uint64_t room_for) {
  while (directory_.rows_of(worker) + room_for > options_.capacity_rows) {
    const RowAt victim = directory_.oldest(worker);
    const Directory::Row& row = directory_.row(victim);
    plans_[worker]->drop.add(row.table, row.key);
    if (dirty(row)) plans_[worker]->write_back.add(row.table, row.key);
    directory_.unlink(victim);
    directory_.forget(victim);
  }
}

}  // namespace springtide
