// Limits connections that have not completed the handshake: a maximum number and one deadline each. Overdue
// ones, and the oldest when there are too many, are shut down. Authenticated connections are not counted
// here. The same in Python: springtide/rpc/transport/handshake_limits.py.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "net/socket.h"

namespace springtide {

class PendingHandshakes {
 public:
  PendingHandshakes(size_t most, double within_s) : most_(most), within_s_(within_s) {}

  uint64_t begin(int fd);  // its ticket
  // It has proved itself, or is over; to be called before its socket is closed, once or more. False: it was
  // shut down before.
  bool end(uint64_t ticket);
  // Shuts down those that have taken too long. When the next one has: Clock::time_point::max() if there is
  // none.
  Clock::time_point shut_overdue();

 private:
  struct Pending {
    int fd;
    Clock::time_point deadline;
  };
  void shut_oldest();

  const size_t most_;
  const double within_s_;
  std::mutex mutex_;  // of what follows
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, Pending> pending_;  // the oldest first
};

}  // namespace springtide
