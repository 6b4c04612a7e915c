// A connection to the server that slots go to: by TCP, or through a Unix socket where both are on one host,
// so that images do not pass through the network there. In: its address, this server's secret. Out: frames
// there, answers back in the order of the questions. Used by handover.cpp and slot_stream.cpp.
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

  void send(Kind kind, uint64_t slot, std::span<const uint8_t> body, uint64_t gift = 0);  // PeerLost
  // Empty when it is done; else what the target has against it. PeerLost when there is no telling.
  std::string receive(FrameHeader& answer);
  std::string receive(FrameHeader& answer,
                      std::vector<uint8_t>& body);  // which is the answer's when it is done

  // Shared memory for images, so that they are not copied into the socket and out of it; invalid where the
  // target is on another host, or there is none. Once, before anything is sent.
  const Window& share(uint64_t bytes);

  int fd() const { return link_.get(); }
  bool local() const { return local_; }
  void cut();  // whoever sends or receives here gets PeerLost; from any thread

 private:
  Link link_;
  bool local_ = false;
  Window window_;
  uint32_t generation_ = 0;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace springtide
