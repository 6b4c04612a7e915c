// One stamp per row shows the row's age (for ttl and capacity), and whether the row has changed after a cut (for
// checkpoints). A stamp is a tick. A tick stands for one age between two cuts. A new tick starts when the age clock
// advances by a granule, and at every cut.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "store/index/cell.h"

namespace springtide {

class AgeClock {
 public:
  AgeClock() { tick_ = new_tick(0); }

  // Call this function for each new table with a ttl or a capacity. The call makes ages as fine as the table needs.
  void refine(uint64_t ttl, bool has_capacity) {
    if (ttl == 0 && !has_capacity) return;
    std::lock_guard hold(lock_);
    uint64_t wanted = has_capacity ? 1 : std::max<uint64_t>(1, ttl / kGranulesPerTtl);
    granule_ = granule_ == 0 ? wanted : std::min(granule_, wanted);
    tick_ = tick_of(granular(now_));
  }

  // The clock never decreases.
  void advance(uint64_t clock) {
    if (clock <= now()) return;
    std::lock_guard hold(lock_);
    if (clock <= now_) return;
    uint64_t age = granular(clock);
    if (age != age_at(tick_)) tick_ = tick_of(age);
    now_ = clock;  // set last, so that the clock is unchanged if memory for a tick is missing
  }
  uint64_t now() const { return now_.load(std::memory_order_acquire); }
  // Read it under the stripe's lock. A cut before the read then also precedes the change that gets this stamp.
  uint32_t tick() const { return tick_.load(std::memory_order_acquire); }

  uint64_t age_at(uint32_t tick) const { return ages_[tick >> kChunkBits][tick & kChunkMask]; }
  bool expired(uint32_t tick, uint64_t ttl) const {
    uint64_t then = age_at(tick), at = now();
    return ttl != 0 && at > then && at - then > ttl;
  }

  // Returns a current tick, for rows that are imported with their own age. Call this function under the stripe's lock.
  uint32_t tick_for(uint64_t age) {
    std::lock_guard hold(lock_);
    return tick_of(age);
  }

  uint64_t cut() {
    std::lock_guard hold(lock_);
    boundaries_.push_back(leave_behind());
    return boundaries_.size();
  }
  // Returns true if there is a cut or mark, so that an export may ask which rows were evicted since then.
  bool has_cuts() const { return has_cuts_.load(std::memory_order_acquire); }
  // Returns the boundary of a cut: rows with a later stamp have changed after the cut. Throws BadInput if the cut is
  // unknown.
  uint32_t boundary(uint64_t cut) {
    std::lock_guard hold(lock_);
    throw_if<BadInput>(cut == 0 || cut > boundaries_.size(), "no cut numbered ", cut, ": this store has made ",
                       boundaries_.size());
    return boundaries_[cut - 1];
  }
  // A temporary cut, whose boundary is valid until ticks are renumbered. Call mark() under the stripe's lock.
  struct Mark {
    uint32_t boundary = 0;
    uint64_t numbering = 0;
  };
  Mark mark() {
    std::lock_guard hold(lock_);
    return {leave_behind(), numbering_};
  }
  bool knows(const Mark& mark) const { return mark.numbering == numbering_; }  // the caller holds a stripe's lock

  // When ticks run out, the store renumbers the ticks in use and keeps their order. `new_tick` maps old ticks to new
  // ones.
  bool nearly_full() const { return tick() > last_tick_ - last_tick_ / 8; }
  void renumber(const std::vector<bool>& used, std::vector<uint32_t>& new_tick) {
    std::lock_guard hold(lock_);
    ++numbering_;
    std::vector<uint64_t> ages{0};
    new_tick.assign(used.size(), 0);
    std::vector<uint32_t> below(newest_ + 2, 0);  // how many ticks up to this one are kept
    for (uint32_t t = 1; t <= newest_; ++t) {
      bool keep = (t < used.size() && used[t]) || t == tick_;
      if (keep) ages.push_back(age_at(t));
      below[t] = static_cast<uint32_t>(ages.size()) - 1;
      if (keep && t < used.size()) new_tick[t] = below[t];
    }
    for (uint32_t& boundary : boundaries_) boundary = below[std::min(boundary, newest_)];
    uint32_t last_boundary = boundaries_.empty() ? 0 : boundaries_.back();
    tick_ = below[tick_];
    newest_ = static_cast<uint32_t>(ages.size()) - 1;
    since_cut_.clear();
    for (uint32_t t = 1; t <= newest_; ++t) {
      set_age(t, ages[t]);
      if (t > last_boundary) since_cut_.emplace(ages[t], t);
    }
  }
  void set_last_tick(uint32_t last) { last_tick_ = last; }  // tests set a smaller value, so that fewer ticks suffice

 private:
  static constexpr uint64_t kGranulesPerTtl = 4096;  // a row lives at most 1/4096 longer than its ttl
  static constexpr uint32_t kChunkBits = 12;
  static constexpr uint32_t kChunkMask = (1u << kChunkBits) - 1;

  // Rounds up to the end of the granule, so that no row seems older than it is.
  uint64_t granular(uint64_t clock) const {
    if (granule_ == 0) return 0;
    uint64_t start = clock / granule_ * granule_;
    return start > UINT64_MAX - granule_ ? UINT64_MAX : start + (granule_ - 1);
  }
  uint32_t tick_of(uint64_t age) {
    auto known = since_cut_.find(age);
    return known != since_cut_.end() ? known->second : new_tick(age);
  }
  uint32_t new_tick(uint64_t age) {
    if (newest_ >= last_tick_) throw BadInput("the age clock of this store ran out of ticks");
    set_age(newest_ + 1, age);
    since_cut_.emplace(age, newest_ + 1);
    return ++newest_;
  }
  // Starts a new tick, and returns the last tick before it.
  uint32_t leave_behind() {
    const uint32_t last = newest_;
    since_cut_.clear();
    tick_ = new_tick(granular(now_));
    has_cuts_ = true;
    return last;
  }
  void set_age(uint32_t tick, uint64_t age) {
    auto& chunk = ages_[tick >> kChunkBits];
    if (!chunk) chunk = std::make_unique<uint64_t[]>(size_t{1} << kChunkBits);
    chunk[tick & kChunkMask] = age;
  }

  std::mutex lock_;
  std::atomic<uint64_t> now_{0};
  std::atomic<uint32_t> tick_{0};
  std::atomic<bool> has_cuts_{false};
  uint64_t numbering_ = 0;  // changes only while all stripes are locked
  uint32_t newest_ = 0;     // highest tick in use
  uint32_t last_tick_ = kMaxStamp;
  uint64_t granule_ = 0;  // 0 means that no table needs ages
  std::vector<uint32_t> boundaries_;
  std::unordered_map<uint64_t, uint32_t> since_cut_;  // age -> tick, for ticks that began after the last cut
  std::array<std::unique_ptr<uint64_t[]>, 1u << (kStampBits - kChunkBits)> ages_;
};

}  // namespace springtide
