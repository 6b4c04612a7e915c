// A connection to the server that receives slots: TCP, or a Unix socket where both servers are on one host.
// Replies come in the order of the requests. Used by handover.cpp, throttled_handover.cpp and
// slot_stream.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "migrate/handover.h"
#include "net/link.h"
#include "net/socket.h"
#include "net/window.h"
#include "server/requests/server_state.h"
#include "wire/wire.h"

namespace springtide {

class SlotTarget {
 public:
  SlotTarget(const ServerState& state, const HandoverOptions& to);  // PeerLost

  void send(Kind kind, uint64_t slot, std::span<const uint8_t> body, uint64_t transfer = 0);  // PeerLost
  // Returns why the target refused, or an empty string. PeerLost when no reply came. `body`: the reply's.
  std::string receive(FrameHeader& answer);
  std::string receive(FrameHeader& answer, std::vector<uint8_t>& body);

  // Shared memory for images; invalid where the target is on another host. Call it once, before anything is
  // sent.
  const Window& share(uint64_t bytes);

  int fd() const { return link_.get(); }
  bool local() const { return local_; }
  void cut();  // makes send and receive throw PeerLost; any thread

 private:
  Link link_;
  bool local_ = false;
  Window window_;
  uint32_t generation_ = 0;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace springtide
