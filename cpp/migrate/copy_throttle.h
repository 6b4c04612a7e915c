// Limits the CPU share of a thread that copies slots while the server serves requests.
// In: the thread's own CPU time and the server's request counts. Used by slot_stream.cpp.
#pragma once

#include <cstdint>

#include "server/requests/server_state.h"

namespace springtide {

class CopyThrottle {
 public:
  explicit CopyThrottle(const ServerState& state);

  // Sleeps after a piece of work and returns the seconds slept: 0 while too little CPU time was used, or no
  // request came since the last call.
  double pause();

 private:
  uint64_t requests() const { return state_.count.pulls + state_.count.pushes; }

  const ServerState& state_;
  uint64_t requests_before_;
  double cpu_before_;  // CPU seconds of this thread at the last pause
};

}  // namespace springtide
