// One stamp a row serves two questions: how old is it (ttl, capacity), and did it change after a cut
// (checkpoints). A stamp is a tick. A tick stands for an age between two cuts: it rises when the age clock
// moves by a granule and at every cut. In: clocks of pushes, cuts. Out: the tick to stamp with; ages and cut
// boundaries of ticks.
#pragma once

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
  AgeClock();

  // A table with this ttl or a capacity came: ages must be this fine from now on.
  void refine(uint64_t ttl, bool has_capacity);

  void advance(uint64_t clock);  // never goes back
  uint64_t now() const { return now_.load(std::memory_order_acquire); }
  // To be read under the stripe's lock: a cut that comes before it is then also before what gets this stamp.
  uint32_t tick() const { return tick_.load(std::memory_order_acquire); }

  uint64_t age_at(uint32_t tick) const { return ages_[tick >> kChunkBits][tick & kChunkMask]; }
  bool expired(uint32_t tick, uint64_t ttl) const {
    uint64_t then = age_at(tick), at = now();
    return ttl != 0 && at > then && at - then > ttl;
  }

  // A tick of today for rows that come from elsewhere with their own age. Under the stripe's lock.
  uint32_t tick_for(uint64_t age);

  uint64_t cut();
  // Whether somebody may ask what went since then.
  bool has_cuts() const { return has_cuts_.load(std::memory_order_acquire); }
  uint32_t boundary(uint64_t cut);  // what is stamped later than this changed after the cut; BadInput: no such cut
  // A cut that is not kept: its boundary, good until ticks are renumbered. Under the stripe's lock.
  struct Mark {
    uint32_t boundary = 0;
    uint64_t numbering = 0;
  };
  Mark mark();
  bool knows(const Mark& mark) const { return mark.numbering == numbering_; }  // under a stripe's lock

  // When the ticks run out the store renumbers the ones still in use (keeping order): old tick -> new tick.
  bool nearly_full() const { return tick() > last_tick_ - last_tick_ / 8; }
  void renumber(const std::vector<bool>& used, std::vector<uint32_t>& new_tick);
  void set_last_tick(uint32_t last) { last_tick_ = last; }  // tests bring the end nearer

 private:
  static constexpr uint32_t kChunkBits = 12;
  static constexpr uint32_t kChunkMask = (1u << kChunkBits) - 1;

  uint64_t granular(uint64_t clock) const;
  uint32_t new_tick(uint64_t age);
  uint32_t leave_behind();  // all ticks up to the one returned
  void set_age(uint32_t tick, uint64_t age);

  std::mutex lock_;
  std::atomic<uint64_t> now_{0};
  std::atomic<uint32_t> tick_{0};
  std::atomic<bool> has_cuts_{false};
  uint64_t numbering_ = 0;  // changes when no stripe is unlocked
  uint32_t newest_ = 0;     // highest tick given out
  uint32_t last_tick_ = kMaxStamp;
  uint64_t granule_ = 0;  // 0: no table asks for ages
  std::vector<uint32_t> boundaries_;
  std::unordered_map<uint64_t, uint32_t> since_cut_;  // age -> tick, those made after the last cut
  std::array<std::unique_ptr<uint64_t[]>, 1u << (kStampBits - kChunkBits)> ages_;
};

}  // namespace springtide
