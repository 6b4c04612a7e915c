#include "store/keys/age_clock.h"

#include <algorithm>
#include <string>

namespace springtide {

namespace {
constexpr uint64_t kGranulesPerTtl = 4096;  // a row lives at most 1/4096 longer than its ttl
}

AgeClock::AgeClock() { tick_ = new_tick(0); }

void AgeClock::refine(uint64_t ttl, bool has_capacity) {
  if (ttl == 0 && !has_capacity) return;
  std::lock_guard hold(lock_);
  uint64_t wanted = has_capacity ? 1 : std::max<uint64_t>(1, ttl / kGranulesPerTtl);
  granule_ = granule_ == 0 ? wanted : std::min(granule_, wanted);
  uint64_t age = granular(now_);
  auto known = since_cut_.find(age);
  tick_ = known != since_cut_.end() ? known->second : new_tick(age);
}

void AgeClock::advance(uint64_t clock) {
  if (clock <= now()) return;
  std::lock_guard hold(lock_);
  if (clock <= now_) return;
  uint64_t age = granular(clock);
  if (age != age_at(tick_)) {
    auto known = since_cut_.find(age);
    tick_ = known != since_cut_.end() ? known->second : new_tick(age);
  }
  now_ = clock;  // last: without memory for a tick the clock stays where it was
}

uint32_t AgeClock::tick_for(uint64_t age) {
  std::lock_guard hold(lock_);
  auto known = since_cut_.find(age);
  return known != since_cut_.end() ? known->second : new_tick(age);
}

uint64_t AgeClock::cut() {
  std::lock_guard hold(lock_);
  boundaries_.push_back(leave_behind());
  return boundaries_.size();
}

AgeClock::Mark AgeClock::mark() {
  std::lock_guard hold(lock_);
  return {leave_behind(), numbering_};
}

uint32_t AgeClock::leave_behind() {
  const uint32_t last = newest_;
  since_cut_.clear();
  tick_ = new_tick(granular(now_));
  has_cuts_ = true;
  return last;
}

uint32_t AgeClock::boundary(uint64_t cut) {
  std::lock_guard hold(lock_);
  if (cut == 0 || cut > boundaries_.size()) {
    throw BadInput("no cut numbered " + std::to_string(cut) + ": this store has made " +
                   std::to_string(boundaries_.size()));
  }
  return boundaries_[cut - 1];
}

void AgeClock::renumber(const std::vector<bool>& used, std::vector<uint32_t>& new_tick) {
  std::lock_guard hold(lock_);
  ++numbering_;
  std::vector<uint64_t> ages{0};
  new_tick.assign(used.size(), 0);
  std::vector<uint32_t> below(newest_ + 2, 0);  // kept ticks up to and with this one
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

// The end of the granule: a row is never taken for older than it is.
uint64_t AgeClock::granular(uint64_t clock) const {
  if (granule_ == 0) return 0;
  uint64_t start = clock / granule_ * granule_;
  return start > UINT64_MAX - granule_ ? UINT64_MAX : start + (granule_ - 1);
}

uint32_t AgeClock::new_tick(uint64_t age) {
  if (newest_ >= last_tick_) throw BadInput("the age clock of this store ran out of ticks");
  set_age(newest_ + 1, age);
  since_cut_.emplace(age, newest_ + 1);
  return ++newest_;
}

void AgeClock::set_age(uint32_t tick, uint64_t age) {
  auto& chunk = ages_[tick >> kChunkBits];
  if (!chunk) chunk = std::make_unique<uint64_t[]>(size_t{1} << kChunkBits);
  chunk[tick & kChunkMask] = age;
}

}  // namespace springtide
