// Decisions on slot transfers that peers have offered to this server.
//
// A source that got no reply offers the slot again, and its first frame may still be on its way; by then this
// server may have passed the slot on. So every transfer has an id, the same in each attempt, and is accepted
// or refused once. Used by slot_requests.cpp; handover.cpp draws the ids.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

namespace springtide {

class TransferLog {
 public:
  enum class Outcome { unknown, accepted, refused };

  static uint64_t new_id();  // random, never 0

  // Hold it from `outcome` to `record`: the same transfer may arrive over two connections at once.
  std::unique_lock<std::mutex> lock(uint32_t slot);
  Outcome outcome(uint32_t slot, uint64_t id) const;         // unknown for id 0, a transfer without an id
  void record(uint32_t slot, uint64_t id, Outcome outcome);  // the first record of an id stays

 private:
  struct Entry {
    uint64_t id;
    Outcome outcome;
  };
  std::array<std::mutex, 64> stripes_;
  mutable std::mutex mutex_;  // guards entries_
  std::map<uint32_t, std::deque<Entry>> entries_;
};

}  // namespace springtide
