// One client connection of a server: handshake, then frames in order until it ends. Next: request_handler.h.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "net/handshake.h"
#include "net/link.h"
#include "net/socket.h"
#include "server/requests/request_handler.h"
#include "server/requests/server_state.h"

namespace springtide {

class Connection {
 public:
  Connection(ServerState& state, Fd fd, bool local)
      : state_(state), link_(std::move(fd)), local_(local), ticket_(state.handshakes.begin(link_.get())) {}
  ~Connection() { state_.handshakes.end(ticket_); }

  // Until the peer goes, misbehaves, is a stranger for too long (pending_handshakes.h), or one of the two
  // below.
  void serve(const Welcome& terms);
  void stop_reading() { shut_reading(link_.get()); }
  void cut() { shut_both(link_.get()); }

  std::thread thread;
  std::atomic<bool> finished{false};

 private:
  bool greeted(const Welcome& terms);
  void serve_member();
  std::string take_place();
  bool next(RequestHandler& handler);
  bool receive_body(const FrameHeader& header, RequestHandler& handler, std::span<const uint8_t>& body);
  bool receive_window(const FrameHeader& header, RequestHandler& handler);
  bool misbehaved(const FrameHeader& header, const std::string& why);
  bool lost(Io io);
  uint8_t* reserve(uint64_t bytes);

  ServerState& state_;
  Link link_;
  bool local_;
  const uint64_t ticket_;  // until it has proved itself
  bool has_place_ = false;
  std::unique_ptr<uint8_t[]> buffer_;  // of the frame being read; not cleared, so that a large claim costs nothing
  uint64_t capacity_ = 0;
};

}  // namespace springtide
