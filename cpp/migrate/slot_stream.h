// A thread that copies whole slots and sends them one after the other, while its owner reads the replies:
// copying, sending and importing overlap. Used by handover.cpp.
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
    uint64_t cut = 0;  // made before the image: later changes may be missing from it
    uint64_t bytes = 0;
  };

  SlotStream(ServerState& state, SlotTarget& to, std::vector<uint16_t> slots);
  ~SlotStream();  // stops sending; cuts the connection unless all was sent
  SlotStream(const SlotStream&) = delete;
  SlotStream& operator=(const SlotStream&) = delete;

  // The image whose reply has come; call it once per reply.
  Sent arrived();
  // Sends begun plus sends ended: odd while an image is being sent.
  uint64_t sends() const { return sends_; }
  // Rethrows what ended the thread early.
  void rethrow();

 private:
  void send_all();

  ServerState& state_;
  SlotTarget& to_;
  const std::vector<uint16_t> slots_;
  const std::vector<uint64_t> transfer_ids_;  // by position in slots_
  std::atomic<uint64_t> sends_{0};
  std::mutex mutex_;  // guards the members below
  std::condition_variable room_;
  std::deque<Sent> under_way_;
  uint64_t bytes_under_way_ = 0;
  const Window& window_;  // one part per image in flight
  bool over_ = false, all_sent_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last member: it uses the others
};

}  // namespace springtide
