// The plan of a step, and the directory after it (Algorithm 2 of Herald): a dirty row is written back only when another
// worker trains the row next. In addition, rows are written back on eviction, and are sent from worker to worker if
// that saves a transmission.
#include <algorithm>

#include "schedule/schedule.h"

namespace springtide {

namespace {

PlanKeys& between(std::vector<PeerRows>& all, uint32_t peer) {
  auto at =
      std::lower_bound(all.begin(), all.end(), peer, [](const PeerRows& one, uint32_t p) { return one.peer < p; });
  if (at == all.end() || at->peer != peer) at = all.insert(at, PeerRows{peer, {}});
  return at->rows;
}

// Reserves memory for a plan, which is about as long as the previous plan.
void reserve(CachePlan& plan, const CachePlan& before) {
  for (PlanKeys CachePlan::* list : {&CachePlan::write_back, &CachePlan::drop, &CachePlan::hold_hit,
                                     &CachePlan::hold_pull, &CachePlan::pass_hit, &CachePlan::pass_pull}) {
    const size_t wanted = (before.*list).size() + (before.*list).size() / 8;
    (plan.*list).tables.reserve(wanted);
    (plan.*list).keys.reserve(wanted);
  }
}

}  // namespace

// Goes through the batch worker by worker. A key is new to a worker if the last worker with that key is a different
// worker.
void Scheduler::find_trainers(std::span<const int32_t> rank_of_sample) {
  std::vector<uint32_t> begin(options_.workers + 1), samples(rank_of_sample.size());
  for (int32_t rank : rank_of_sample) ++begin[static_cast<size_t>(rank) + 1];
  for (uint32_t w = 0; w < options_.workers; ++w) begin[w + 1] += begin[w];
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (uint32_t i = 0; i < rank_of_sample.size(); ++i) samples[next[static_cast<size_t>(rank_of_sample[i])]++] = i;

  trainer_.assign(batch_.size(), kNoWorker);
  std::vector<uint16_t> last(batch_.size(), kNoWorker);
  const auto units = batch_.units();
  const auto sample_begin = batch_.sample_begin();
  for (uint32_t w = 0; w < options_.workers; ++w) {
    trains_[w].clear();
    for (uint32_t s = begin[w]; s < begin[w + 1]; ++s) {
      for (uint32_t k = sample_begin[samples[s]]; k < sample_begin[samples[s] + 1]; ++k) {
        const uint32_t unit = units[k];
        if (last[unit] == w) continue;
        last[unit] = static_cast<uint16_t>(w);
        trainer_[unit] = trainer_[unit] == kNoWorker ? static_cast<uint16_t>(w) : kShared;
        trains_[w].push_back(unit);
      }
    }
  }
}

// Chooses which worker keeps each row. First, a row that one of its trainers already caches stays there. Then rows that
// one worker trains alone enter its cache while there is room. Then rows that a few workers train get a home, which is
// one of these workers.
void Scheduler::choose_keepers() {
  keeper_.assign(batch_.size(), kNoWorker);
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

// Returns true if so few workers train the key that they exchange its gradients instead of pushing them.
bool Scheduler::exchanged(uint32_t unit) const {
  if (options_.p2p != P2P::gradients || trainer_[unit] != kShared) return false;
  const Trainers& all = trainers_[unit];
  int count = 0;
  for (uint64_t word : all) count += std::popcount(word);
  return static_cast<uint32_t>(count) <= options_.p2p_trainers;
}

// If a row's owner does not train it, the row goes to the trainer that keeps the fewest such rows, so that the work of
// summing is spread.
void Scheduler::choose_homes() {
  std::vector<uint32_t> homes(options_.workers);
  for (uint32_t w = 0; w < options_.workers; ++w) {
    for (uint32_t unit : hits_[w]) homes[w] += trainer_[unit] == kShared;
  }
  for (uint32_t unit = 0; unit < batch_.size(); ++unit) {
    if (keeper_[unit] != kNoWorker || !exchanged(unit)) continue;
    uint32_t home = kNoWorker;
    each_trainer(unit, [&](uint32_t w) {
      if (enters_[w].size() < room_[w] && (home == kNoWorker || homes[w] < homes[home])) home = w;
    });
    if (home == kNoWorker) continue;
    keeper_[unit] = static_cast<uint16_t>(home);
    enters_[home].push_back(unit);
    ++homes[home];
  }
}

void Scheduler::make_plans() {
  for (uint32_t w = 0; w < options_.workers; ++w) {
    const std::shared_ptr<CachePlan> before = std::move(plans_[w]);
    plans_[w] = std::make_shared<CachePlan>();
    if (before) reserve(*plans_[w], *before);
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
  pool_.run(options_.workers, [&](uint32_t w) { plan_trained(w); });
  plan_owned();
}

// Plans the rows that the worker finds in its cache or pulls. plan_owned() plans rows from other workers.
void Scheduler::plan_trained(uint32_t worker) {
  CachePlan& plan = *plans_[worker];
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  for (uint32_t unit : trains_[worker]) {
    const uint16_t owner = owner_[unit], keeper = keeper_[unit];
    if (keeper == worker) {
      if (owner == worker) {
        plan.hold_hit.add(tables[unit], keys[unit]);
      } else if (options_.p2p == P2P::off || !dirty_[unit]) {
        plan.hold_pull.add(tables[unit], keys[unit]);
      }
    } else if (owner == worker) {
      plan.pass_hit.add(tables[unit], keys[unit]);
    } else if (keeper == kNoWorker || (owner != keeper && !dirty_[unit])) {
      plan.pass_pull.add(tables[unit], keys[unit]);
    }
  }
  if (options_.on_demand) return;
  PlanKeys& holds = last_holds_[worker];
  for (const auto* list : {&hits_[worker], &enters_[worker]}) {
    for (uint32_t unit : *list) holds.add(tables[unit], keys[unit]);
  }
}

// Plans the rows that owners give up or share, and the data that workers send to each other.
void Scheduler::plan_owned() {
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  for (uint32_t unit = 0; unit < batch_.size(); ++unit) {
    const uint16_t owner = owner_[unit], keeper = keeper_[unit];
    if (trainer_[unit] == kShared && keeper != kNoWorker) plan_exchange(unit);
    if (owner == kNoWorker || owner == keeper) continue;
    CachePlan& plan = *plans_[owner];
    plan.drop.add(tables[unit], keys[unit]);
    if (!dirty_[unit]) continue;
    if (options_.p2p != P2P::off && keeper != kNoWorker) {
      between(plan.sends, keeper).add(tables[unit], keys[unit]);
      between(plans_[keeper]->receives, owner).add(tables[unit], keys[unit]);
    } else {
      plan.write_back.add(tables[unit], keys[unit]);
    }
  }
}

// Plans a row that a few workers train and one worker keeps. The other trainers get its value from the owner or the
// server, and send their gradients to the keeper.
void Scheduler::plan_exchange(uint32_t unit) {
  const TableId table = batch_.tables()[unit];
  const Key key = batch_.keys()[unit];
  const uint16_t owner = owner_[unit], keeper = keeper_[unit];
  each_trainer(unit, [&](uint32_t w) {
    if (w == keeper) return;
    if (owner == keeper || dirty_[unit]) {
      between(plans_[owner]->value_sends, w).add(table, key);
      between(plans_[w]->value_receives, owner).add(table, key);
    }
    between(plans_[w]->gradient_sends, keeper).add(table, key);
    between(plans_[keeper]->gradient_receives, w).add(table, key);
  });
}

// Updates the directory to the state after the step. Rows that were given up are removed, and trained rows become the
// newest rows. To make room for new rows, the cache evicts rows that the batch does not use.
void Scheduler::update_directory() {
  const size_t units = batch_.size();
  for (size_t ahead = 0; ahead < units + 2 * kAhead; ++ahead) {
    if (ahead < units && at_[ahead] != kNoRow) directory_.prefetch_row_at(at_[ahead]);
    if (ahead >= kAhead && ahead - kAhead < units && at_[ahead - kAhead] != kNoRow)
      directory_.prefetch_neighbours(at_[ahead - kAhead]);
    if (ahead < 2 * kAhead) continue;
    const size_t unit = ahead - 2 * kAhead;
    if (at_[unit] == kNoRow) continue;
    directory_.unlink(at_[unit]);
    if (keeper_[unit] == kNoWorker) directory_.forget(at_[unit]);
  }
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  const auto hashes = batch_.hashes();
  for (uint32_t w = 0; w < options_.workers; ++w) {
    evict(w, hits_[w].size() + enters_[w].size());
    for (uint32_t unit : hits_[w]) directory_.link(at_[unit], w, step_);
    for (uint32_t unit : enters_[w]) {
      if (owner_[unit] == kNoWorker) at_[unit] = directory_.add(tables[unit], keys[unit], hashes[unit], w);
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
