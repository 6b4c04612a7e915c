// The start of a connection. The server and the client prove that they know the job's secret, with fresh random
// numbers. Then the server sends its terms.
//
//   client                                   server
//   hello(nonce c)                  ─►
//                                   ◄─       challenge(nonce s, HMAC(secret, "server" c s))
//   proof(HMAC(secret, "client" s c)) ─►
//                                   ◄─       welcome(index, slots, limits, credits, name of the local socket)
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "net/socket.h"
#include "net/window.h"
#include "wire/wire.h"

namespace springtide {

struct Welcome {
  uint32_t server_index = 0;
  uint32_t slots = 0;
  uint32_t epoch = 0;
  uint32_t generation = 0;
  // a random number drawn at the start, which distinguishes two servers at one address
  uint64_t instance = 0;
  uint64_t max_frame_bytes = 0;       // larger frames are refused
  uint32_t credit_requests = 0;       // number of requests that a client may have in flight
  uint32_t workers = 0;               // bsp: number of parts of one step
  uint64_t credit_bytes = 0;          // bytes of requests that a client may have in flight
  uint64_t step_wait_ms = 0;          // bsp: how long a pull waits for the previous step, in ms
  std::array<char, 96> local_name{};  // name of an abstract Unix socket for peers on this host; empty if there is none
};
static_assert(sizeof(Welcome) == 152);

// Runs the server's side. Returns an empty string if the client is accepted; `who` then has the client's hello.
// Otherwise returns the reason why the client was refused, which the client gets too. After the client has proved that
// it knows the secret, `busy` is called. `busy` returns the reason why there is no room for the client, or an empty
// string.
std::string accept_handshake(Line line, const std::string& secret, const Welcome& welcome, FrameHeader& who,
                             const std::function<std::string()>& busy);
// Runs the client's side. `who` carries rank, incarnation, generation, epoch. Throws PeerLost or HandshakeRefused.
Welcome offer_handshake(Line line, const std::string& secret, FrameHeader who);

// Opens a second connection to the same server through its Unix socket. The result is invalid unless the server runs on
// this host.
Fd connect_on_host(const Welcome& terms, const std::string& secret, const FrameHeader& who, double timeout_s);
// Shares a window over such a connection. Returns false if the server did not accept the window. `who` has the same
// meaning as in offer_handshake.
bool share_window(int fd, FrameHeader who, const Window& window);

std::string random_bytes(size_t count);

// Limits connections that have not completed the handshake. Shuts down overdue connections and, if there are too many,
// the oldest. springtide/rpc/transport/auth.py does the same in Python.
class PendingHandshakes {
 public:
  PendingHandshakes(size_t most, double within_s) : most_(most), within_s_(within_s) {}

  // Registers a connection and returns its ticket.
  uint64_t begin(int fd) {
    const std::lock_guard lock(mutex_);
    while (pending_.size() >= most_) shut_oldest();
    pending_[++last_ticket_] = {fd, Clock::now() + seconds_of(within_s_)};
    return last_ticket_;
  }
  // Ends the handshake. Call this function before the socket is closed. Returns false if the connection has already
  // been shut down.
  bool end(uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    return pending_.erase(ticket) != 0;
  }
  // Shuts down overdue handshakes. Returns the time at which the next connection becomes overdue, or
  // Clock::time_point::max() if no handshake is pending.
  Clock::time_point shut_overdue() {
    const std::lock_guard lock(mutex_);
    while (!pending_.empty() && pending_.begin()->second.deadline <= Clock::now()) shut_oldest();
    return pending_.empty() ? Clock::time_point::max() : pending_.begin()->second.deadline;
  }

 private:
  struct Pending {
    int fd;
    Clock::time_point deadline;
  };
  void shut_oldest() {
    shut_both(pending_.begin()->second.fd);
    pending_.erase(pending_.begin());
  }

  const size_t most_;
  const double within_s_;
  std::mutex mutex_;  // guards the members below
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, Pending> pending_;  // the oldest first
};

}  // namespace springtide
