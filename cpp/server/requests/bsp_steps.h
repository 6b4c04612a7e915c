// The steps of a bsp group on one server. A step is complete when every rank's part has arrived. When a step is
// complete on all servers, a client asks the servers to apply it. Until then, all servers can drop it. Gradients are
// summed in rank order.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store/store.h"

namespace springtide {

// The step is not available: parts are missing, the group returned to a checkpoint, or the server stops.
SPRINGTIDE_ERROR(StepMissing, Error, "ServerUnreachable");

struct StepRowsIn {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> floats;
};

struct StepPart {
  StepRowsIn grads;
  StepRowsIn images;  // images of rows that a worker has trained itself; assigned after the sums are applied
  std::vector<TableHyper> hyper;
  uint64_t clock = 0;
  bool unique = true;
};

inline void append(StepRowsIn& all, const StepRowsIn& rows) {
  all.tables.insert(all.tables.end(), rows.tables.begin(), rows.tables.end());
  all.keys.insert(all.keys.end(), rows.keys.begin(), rows.keys.end());
  all.floats.insert(all.floats.end(), rows.floats.begin(), rows.floats.end());
}

// Joins the parts in rank order, because the store sums duplicates in the order of the keys.
inline StepPart joined(const std::map<uint32_t, StepPart>& parts) {
  StepPart all;
  all.unique = parts.size() == 1 && parts.begin()->second.unique;
  for (const auto& [rank, part] : parts) {
    append(all.grads, part.grads);
    append(all.images, part.images);
    all.clock = std::max(all.clock, part.clock);
    for (const TableHyper& values : part.hyper) {
      const auto same = [&](const TableHyper& known) { return known.table == values.table; };
      if (std::none_of(all.hyper.begin(), all.hyper.end(), same)) all.hyper.push_back(values);
    }
  }
  return all;
}

class BspSteps {
 public:
  BspSteps(Store& store, uint32_t workers) : store_(store), workers_(workers) {}

  // Stores the part, unless the part is a duplicate or its step is already applied. Returns false for a part of an
  // older group. Ranks are numbered as in the job, so the ranks of a group may have gaps between them. Throws BadInput
  // if the group already has all its ranks.
  bool add(uint64_t step, uint32_t rank, uint32_t generation, StepPart part) {
    const std::lock_guard lock(mutex_);
    if (!stopped_.empty()) throw StepMissing(stopped_);
    if (generation < generation_) return false;
    if (step <= applied_) return true;
    if (step > applied_ + kAhead) {
      throw BadInput("rank ", rank, " pushed step ", step, " while step ", applied_ + 1, " is not applied yet",
                     missing(applied_ + 1));
    }
    auto& parts = parts_[step];
    throw_if<BadInput>(parts.size() == workers_ && !parts.contains(rank), "rank ", rank, " pushed a part of step ",
                       step, ", but all ", workers_, " workers of the group have done so");
    parts.try_emplace(rank, std::move(part));
    if (is_complete(step)) moved_.notify_all();
    return true;
  }
  // Returns whether every rank's part of `step` arrives within `timeout_s` seconds. Returns false if the group is
  // re-formed.
  bool await_complete(uint64_t step, double timeout_s) {
    std::unique_lock lock(mutex_);
    const uint64_t resets = resets_;
    const auto ready = [&] { return is_complete(step) || !stopped_.empty() || resets_ != resets; };
    const bool came = moved_.wait_for(lock, std::chrono::duration<double>(timeout_s), ready);
    if (!stopped_.empty()) throw StepMissing(stopped_);
    return came && is_complete(step);
  }
  // Applies all steps up to `step`. The caller must know that these steps are complete on every server. Returns the
  // nanoseconds that the store took. Throws StepMissing if a step is incomplete on this server.
  uint64_t apply(uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (!stopped_.empty()) throw StepMissing(stopped_);
    return apply_up_to(step);
  }
  // Returns the last step such that it and all earlier steps are complete on this server.
  uint64_t complete() const {
    const std::lock_guard lock(mutex_);
    uint64_t step = applied_;
    while (is_complete(step + 1)) ++step;
    return step;
  }
  // Re-forms the group: applies the steps up to `step` and drops later parts. `at_rest`: all ranks have completed
  // `step`, so any step without parts on this server is older than the server's first slots. Throws StepMissing if a
  // later step is already applied on this server.
  uint64_t settle(uint64_t step, uint32_t workers, uint32_t generation, bool at_rest = false) {
    const std::lock_guard lock(mutex_);
    if (!stopped_.empty()) throw StepMissing(stopped_);
    // without this update, new parts of the steps in between would be dropped as already applied
    if (at_rest && applied_ > step) {
      throw StepMissing("a group cannot go on after step ", step, " here, where step ", applied_, " is applied");
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
  // Waits until `step` is complete, and applies it. Throws StepMissing after `timeout_s` seconds, and names the missing
  // ranks.
  void wait(uint64_t step, double timeout_s) {
    std::unique_lock lock(mutex_);
    const uint64_t resets = resets_;
    const auto ready = [&] { return applied_ >= step || is_complete(step) || !stopped_.empty() || resets_ != resets; };
    const bool came = moved_.wait_for(lock, std::chrono::duration<double>(timeout_s), ready);
    if (applied_ >= step) return;
    if (resets_ != resets) throw StepMissing("the group was re-formed while this pull waited");
    if (!stopped_.empty()) throw StepMissing(stopped_);
    if (!came) {
      throw StepMissing("step ", applied_ + 1, " was not complete after ", static_cast<int64_t>(timeout_s), " s",
                        missing(applied_ + 1), "; are these workers running? see their logs");
    }
    apply_up_to(step);  // a client that asks for rows after this step knows that the step is complete on all servers
  }
  // The group returns to a checkpoint: drops the parts that are stored, and wakes all waiting threads. Call settle()
  // next.
  void reset(uint32_t workers, uint32_t generation) {
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
  // Ends all steps permanently, because the server stops.
  void cancel(const std::string& why) {
    const std::lock_guard lock(mutex_);
    stopped_ = why;
    moved_.notify_all();
  }
  uint64_t applied() const {
    const std::lock_guard lock(mutex_);
    return applied_;
  }
  // Returns true if a step failed in the middle. No slot may then be served or handed over until the group has returned
  // to a checkpoint.
  bool half_applied() const {
    const std::lock_guard lock(mutex_);
    return half_applied_;
  }

 private:
  // Call the functions below with the lock held.
  bool is_complete(uint64_t step) const {
    if (step <= applied_) return true;
    const auto there = parts_.find(step);
    return there != parts_.end() && there->second.size() == workers_;
  }
  uint64_t apply_up_to(uint64_t step) {
    const auto start = std::chrono::steady_clock::now();
    bool any = false;
    while (applied_ < step) {
      if (!is_complete(applied_ + 1)) {
        throw StepMissing("step ", applied_ + 1, " is to be applied", missing(applied_ + 1));
      }
      const auto next = parts_.find(applied_ + 1);
      const StepPart all = joined(next->second);
      parts_.erase(next);
      any = true;
      try {
        const auto& [tables, keys, grads] = all.grads;
        if (!keys.empty()) {
          store_.push(tables, keys, grads.data(), all.hyper, all.clock, all.unique);
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
  std::string missing(uint64_t step) const {
    static const std::map<uint32_t, StepPart> none;
    const auto found = parts_.find(step);
    const auto& there = found != parts_.end() ? found->second : none;
    std::string ranks;
    const auto list = [&](uint32_t rank) { ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank); };
    // ranks have gaps, so it is unknown which ranks are missing
    if (!there.empty() && there.rbegin()->first >= workers_) {
      for (const auto& [rank, part] : there) list(rank);
      return ": parts of rank " + ranks + " only, of " + std::to_string(workers_) + " workers";
    }
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      if (!there.contains(rank)) list(rank);
    }
    return ": no part of rank " + ranks;
  }

  // Limits the memory for parts of a rank that is ahead of the slowest rank. A rank can be ahead only on a server that
  // has no keys of that rank.
  static constexpr uint64_t kAhead = 64;

  Store& store_;
  mutable std::mutex mutex_;
  std::condition_variable moved_;
  uint32_t workers_;
  uint32_t generation_ = 0;  // generation of the current group
  uint64_t applied_ = 0;
  uint64_t resets_ = 0;
  std::string stopped_;  // reason why no step will be applied any more
  bool half_applied_ = false;
  std::map<uint64_t, std::map<uint32_t, StepPart>> parts_;
};

}  // namespace springtide
