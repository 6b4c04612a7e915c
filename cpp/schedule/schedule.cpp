#include "schedule/schedule.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

namespace springtide {

namespace {

const SchedulerOptions& checked(const SchedulerOptions& options) {
  if (options.workers == 0 || options.workers > kMostWorkers)
    throw BadInput("a scheduler needs 1 to ", kMostWorkers, " workers, got ", options.workers);
  if (options.threads == 0 || options.threads > 256)
    throw BadInput("a scheduler needs 1 to 256 threads, got ", options.threads);
  return options;
}

}  // namespace

AllocationPolicy policy_called(const std::string& name) {
  static const std::map<std::string, AllocationPolicy> policies = {
      {"anneal", allocate_anneal},
      {"contiguous", allocate_contiguous},
      {"laia", allocate_laia},
      {"random", allocate_random},
  };
  const auto found = policies.find(name);
  if (found != policies.end()) return found->second;
  std::string names;
  for (const auto& [each, _] : policies) names += (names.empty() ? "" : ", ") + each;
  throw BadInput("no allocation policy is called '", name, "'; there are: ", names);
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(checked(options)),
      policy_(policy_called(options.policy)),
      pool_(options.threads),
      directory_(options.workers, options.capacity_rows),
      profile_(options.workers),
      last_holds_(options.workers),
      trains_(options.workers),
      hits_(options.workers),
      enters_(options.workers),
      room_(options.workers),
      plans_(options.workers) {}

Scheduled Scheduler::schedule(std::span<const BatchFeature> features, uint32_t samples, const ScheduleWish& wish) {
  Scheduled done;
  auto since = std::chrono::steady_clock::now();
  const auto finish = [&](Stage stage) {
    const auto now = std::chrono::steady_clock::now();
    done.seconds[size_t(stage)] = std::chrono::duration<double>(now - std::exchange(since, now)).count();
  };
  batch_.read(features, samples, pool_);
  finish(Stage::read);
  ++step_;
  if (options_.profile_every != 0 && step_ % options_.profile_every == 1 % options_.profile_every)
    profile_.look(batch_);
  finish(Stage::profile);
  look_up();
  finish(Stage::look_up);
  done.rank_of_sample.resize(samples);
  allocate(policy_, step_, wish, done.rank_of_sample);
  finish(Stage::allocate);
  find_trainers(done.rank_of_sample);
  choose_keepers();
  make_plans();
  finish(Stage::plan);
  update_directory();
  finish(Stage::snapshot);
  done.step = step_;
  done.distinct = batch_.size();
  done.plans.assign(plans_.begin(), plans_.end());
  return done;
}

void Scheduler::flushed(uint64_t step) {
  if (step > step_) throw BadInput("flushed(", step, "): only ", step_, " steps have been scheduled");
  flushed_ = std::max(flushed_, step);
}

void Scheduler::clear() {
  directory_.clear();
  for (PlanKeys& holds : last_holds_) holds = {};
}

void Scheduler::look_up() {
  const size_t units = batch_.size();
  at_.resize(units);
  owner_.resize(units);
  dirty_.resize(units);
  const uint32_t shares = options_.threads;
  pool_.run(shares, [&](uint32_t share) { look_up(units * share / shares, units * (share + 1) / shares); });
}

void Scheduler::look_up(size_t first, size_t end) {
  const auto keys = batch_.keys();
  const auto tables = batch_.tables();
  const auto hashes = batch_.hashes();
  for (size_t u = first; u < end + 2 * kAhead; ++u) {
    if (u < end) directory_.prefetch_cell(hashes[u]);
    if (u >= first + kAhead && u - kAhead < end) directory_.prefetch_row(hashes[u - kAhead]);
    if (u < first + 2 * kAhead) continue;
    const size_t now = u - 2 * kAhead;
    const RowAt at = directory_.find(tables[now], keys[now], hashes[now]);
    at_[now] = at;
    if (at == kNoRow) {
      owner_[now] = kNoWorker;
      dirty_[now] = 0;
      continue;
    }
    owner_[now] = directory_.row(at).owner;
    dirty_[now] = dirty(directory_.row(at));
  }
}

// This uses the current state, and changes only scratch memory.
Considered Scheduler::consider(std::span<const BatchFeature> features, uint32_t samples, const std::string& policy,
                               const ScheduleWish& wish) {
  batch_.read(features, samples, pool_);
  look_up();
  Considered found;
  found.rank_of_sample.resize(samples);
  const AllocationTask task = allocate(policy_called(policy), step_ + 1, wish, found.rank_of_sample);
  found.transmissions = transmissions(task, found.rank_of_sample);
  return found;
}

AllocationTask Scheduler::allocate(const AllocationPolicy& policy, uint64_t step, const ScheduleWish& wish,
                                   std::span<int32_t> rank_of_sample) {
  const std::span<const TableId> named = wish.scored.empty() ? batch_.feature_tables() : wish.scored;
  const std::vector<TableId> scored = wish.best_tables < named.size()
                                          ? profile_.best(named, wish.best_tables, directory_)
                                          : std::vector<TableId>(named.begin(), named.end());
  const auto counts = [&](TableId table) { return std::find(scored.begin(), scored.end(), table) != scored.end(); };
  positions_.clear();
  scored_.clear();
  if (batch_.uniform()) {
    for (uint32_t f = 0; f < batch_.feature_tables().size(); ++f) {
      if (counts(batch_.feature_tables()[f])) positions_.push_back(f);
    }
  }
  if (positions_.empty()) {
    scored_.resize(batch_.size());
    for (size_t u = 0; u < scored_.size(); ++u) {
      const bool same = u > 0 && batch_.tables()[u] == batch_.tables()[u - 1];
      scored_[u] = same ? scored_[u - 1] : counts(batch_.tables()[u]);
    }
  }
  quota_ = even_quota(batch_.samples(), options_.workers);
  const AllocationTask task{
      .workers = options_.workers,
      .samples = batch_.samples(),
      .sample_begin = batch_.sample_begin(),
      .units = batch_.units(),
      .owner = owner_,
      .dirty = dirty_,
      .positions = positions_,
      .scored = scored_,
      .quota = quota_,
      .capacity_rows = options_.capacity_rows,
      .p2p = options_.p2p,
      .p2p_trainers = options_.p2p_trainers,
      .seed = options_.seed,
      .step = step,
      .effort = wish.effort,
      .threads = options_.threads,
      .crew = &pool_,
  };
  policy(task, rank_of_sample);
  return task;
}

}  // namespace springtide
