// Whole slots, copied out and sent one after the other by a thread of their own, while another hears the
// answers: copying here, the wire and laying in over there go on at the same time. In: slots, a connection.
// Out: images on their way. Used by handover.cpp.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "migrate/slot_target.h"

namespace springtide {

class SlotStream {
 public:
  struct Sent {
    uint16_t slot = 0;
    uint64_t cut = 0;  // made before its image: what changed later is not in it, or is there twice
    uint64_t bytes = 0;
  };

  SlotStream(ServerState& state, SlotTarget& to, std::vector<uint16_t> slots);
  ~SlotStream();  // nothing more is sent; the connection is cut unless all was
  SlotStream(const SlotStream&) = delete;
  SlotStream& operator=(const SlotStream&) = delete;

  // Whose answer comes next. To be called when one has come: so much less is ahead of the slots' closing.
  Sent arrived();
  // Begun and ended ones together: odd while an image is being sent.
  uint64_t sends() const { return sends_; }
  // Why the thread ended before its time, as it was thrown there.
  void rethrow();

 private:
  void send_all();

  ServerState& state_;
  SlotTarget& to_;
  const std::vector<uint16_t> slots_;
  const std::vector<uint64_t> gifts_;  // their names
  std::atomic<uint64_t> sends_{0};
  std::mutex mutex_;  // of what follows
  std::condition_variable room_;
  std::deque<Sent> under_way_;
  uint64_t bytes_under_way_ = 0;
  const Window& window_;  // a part of it for each slot ahead
  bool over_ = false, all_sent_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace springtide
