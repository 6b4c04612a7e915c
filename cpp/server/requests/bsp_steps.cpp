#include "server/requests/bsp_steps.h"

#include <algorithm>
#include <chrono>

namespace springtide {
namespace {

void append(StepRowsIn& all, const StepRowsIn& rows) {
  all.tables.insert(all.tables.end(), rows.tables.begin(), rows.tables.end());
  all.keys.insert(all.keys.end(), rows.keys.begin(), rows.keys.end());
  all.floats.insert(all.floats.end(), rows.floats.begin(), rows.floats.end());
}

// Ranks one after the other: the store sums duplicates in the order it finds them.
StepPart joined(const std::map<uint32_t, StepPart>& parts) {
  StepPart all;
  all.unique = parts.size() == 1 && parts.begin()->second.unique;
  for (const auto& [rank, part] : parts) {
    append(all.grads, part.grads);
    append(all.images, part.images);
    all.clock = std::max(all.clock, part.clock);
    for (size_t i = 0; i < part.hyper_tables.size(); ++i) {
      const auto& known = all.hyper_tables;
      if (std::find(known.begin(), known.end(), part.hyper_tables[i]) != known.end()) continue;
      all.hyper_tables.push_back(part.hyper_tables[i]);
      all.hyper.push_back(part.hyper[i]);
    }
  }
  return all;
}

}  // namespace

bool BspSteps::add(uint64_t step, uint32_t rank, uint32_t generation, StepPart part) {
  const std::lock_guard lock(mutex_);
  if (!stopped_.empty()) throw StepMissing(stopped_);
  if (generation < generation_) return false;
  if (step <= applied_) return true;
  if (step > applied_ + kAhead) {
    throw BadInput("rank " + std::to_string(rank) + " pushed step " + std::to_string(step) + " while step " +
                   std::to_string(applied_ + 1) + " is not applied yet" + missing(applied_ + 1));
  }
  auto& parts = parts_[step];
  if (parts.size() == workers_ && !parts.contains(rank)) {
    throw BadInput("rank " + std::to_string(rank) + " pushed a part of step " + std::to_string(step) + ", but all " +
                   std::to_string(workers_) + " workers of the group have done so");
  }
  parts.try_emplace(rank, std::move(part));
  if (is_complete(step)) moved_.notify_all();
  return true;
}

bool BspSteps::is_complete(uint64_t step) const {
  if (step <= applied_) return true;
  const auto there = parts_.find(step);
  return there != parts_.end() && there->second.size() == workers_;
}

bool BspSteps::await_complete(uint64_t step, double timeout_s) {
  std::unique_lock lock(mutex_);
  const uint64_t resets = resets_;
  const auto ready = [&] { return is_complete(step) || !stopped_.empty() || resets_ != resets; };
  const bool came = moved_.wait_for(lock, std::chrono::duration<double>(timeout_s), ready);
  if (!stopped_.empty()) throw StepMissing(stopped_);
  return came && is_complete(step);
}

uint64_t BspSteps::apply(uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (!stopped_.empty()) throw StepMissing(stopped_);
  return apply_up_to(step);
}

uint64_t BspSteps::apply_up_to(uint64_t step) {
  const auto start = std::chrono::steady_clock::now();
  bool any = false;
  while (applied_ < step) {
    if (!is_complete(applied_ + 1)) {
      throw StepMissing("step " + std::to_string(applied_ + 1) + " is to be applied" + missing(applied_ + 1));
    }
    const auto next = parts_.find(applied_ + 1);
    const StepPart all = joined(next->second);
    parts_.erase(next);
    any = true;
    try {
      const auto& [tables, keys, grads] = all.grads;
      if (!keys.empty()) {
        store_.push(tables, keys, grads.data(), all.hyper_tables, all.hyper, all.clock, all.unique, false);
      }
      if (!all.images.keys.empty()) {
        store_.assign(all.images.tables, all.images.keys, all.images.floats.data());
      }
    } catch (const std::exception& e) {
      half_applied_ = true;
      stopped_ = "step " + std::to_string(applied_ + 1) + " could not be applied: " + e.what();
      moved_.notify_all();
      throw;
    }
    ++applied_;
    moved_.notify_all();
  }
  if (!any) return 0;
  const auto spent = std::chrono::steady_clock::now() - start;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
}

uint64_t BspSteps::complete() const {
  const std::lock_guard lock(mutex_);
  uint64_t step = applied_;
  while (is_complete(step + 1)) ++step;
  return step;
}

uint64_t BspSteps::settle(uint64_t step, uint32_t workers, uint32_t generation, bool at_rest) {
  const std::lock_guard lock(mutex_);
  if (!stopped_.empty()) throw StepMissing(stopped_);
  if (at_rest && applied_ > step) {  // parts of the steps between would be taken for applied, and dropped
    throw StepMissing("a group cannot go on after step " + std::to_string(step) + " here, where step " +
                      std::to_string(applied_) + " is applied");
  }
  if (at_rest && parts_.empty()) applied_ = step;
  const uint64_t spent = apply_up_to(step);
  workers_ = workers;
  generation_ = std::max(generation_, generation);
  parts_.clear();
  ++resets_;
  moved_.notify_all();
  return spent;
}

void BspSteps::wait(uint64_t step, double timeout_s) {
  std::unique_lock lock(mutex_);
  const uint64_t resets = resets_;
  const auto ready = [&] { return applied_ >= step || is_complete(step) || !stopped_.empty() || resets_ != resets; };
  const bool came = moved_.wait_for(lock, std::chrono::duration<double>(timeout_s), ready);
  if (applied_ >= step) return;
  if (resets_ != resets) throw StepMissing("the group was formed anew while this pull waited");
  if (!stopped_.empty()) throw StepMissing(stopped_);
  if (!came) {
    throw StepMissing("step " + std::to_string(applied_ + 1) + " was not complete after " +
                      std::to_string(static_cast<int64_t>(timeout_s)) + " s" + missing(applied_ + 1) +
                      "; are these workers running? see their logs");
  }
  apply_up_to(step);  // who asks for what comes after it knows that it is complete everywhere
}

std::string BspSteps::missing(uint64_t step) const {
  static const std::map<uint32_t, StepPart> none;
  const auto found = parts_.find(step);
  const auto& there = found != parts_.end() ? found->second : none;
  std::string ranks;
  const auto list = [&](uint32_t rank) { ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank); };
  if (!there.empty() && there.rbegin()->first >= workers_) {  // ranks have gaps: who is missing is not known
    for (const auto& [rank, part] : there) list(rank);
    return ": parts of rank " + ranks + " only, of " + std::to_string(workers_) + " workers";
  }
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    if (!there.contains(rank)) list(rank);
  }
  return ": no part of rank " + ranks;
}

void BspSteps::reset(uint32_t workers, uint32_t generation) {
  const std::lock_guard lock(mutex_);
  applied_ = 0;
  workers_ = workers;
  generation_ = std::max(generation_, generation);
  parts_.clear();
  stopped_.clear();
  half_applied_ = false;
  ++resets_;
  moved_.notify_all();
}

void BspSteps::cancel(const std::string& why) {
  const std::lock_guard lock(mutex_);
  stopped_ = why;
  moved_.notify_all();
}

bool BspSteps::half_applied() const {
  const std::lock_guard lock(mutex_);
  return half_applied_;
}

uint64_t BspSteps::applied() const {
  const std::lock_guard lock(mutex_);
  return applied_;
}

}  // namespace springtide
