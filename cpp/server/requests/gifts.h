// What became of slots that peers have given to this server. A source that has had no answer asks again, and
// its first frame may still be on its way: by then this server may have given the slot on. So every gift has
// a name, the same for each time it is offered, and is taken or refused once and for all. In: names off the
// wire. Out: what was said of them before. Used by slot_requests.cpp; names are drawn by handover.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

namespace springtide {

class Gifts {
 public:
  enum class Fate { unknown, taken, refused };

  // Never 0, and no two alike, whichever server draws them.
  static uint64_t new_name();

  // To be held from `fate` to `settle`: the same gift may come over two connections at once.
  std::unique_lock<std::mutex> hold(uint32_t slot);
  Fate fate(uint32_t slot, uint64_t name) const;         // 0, a gift without a name, is not known
  void settle(uint32_t slot, uint64_t name, Fate fate);  // what was said first stays

 private:
  struct Settled {
    uint64_t name;
    Fate fate;
  };
  std::array<std::mutex, 64> stripes_;
  mutable std::mutex mutex_;  // of what follows
  std::map<uint32_t, std::deque<Settled>> settled_;
};

}  // namespace springtide
