// Room for those who train: a thread that copies slots beside them rests after its work, as long as requests
// come. In: the server whose requests count; the work is what the thread itself has had of a processor. Out:
// rests. Used by slot_stream.cpp.
#pragma once

#include <cstdint>

#include "server/requests/server_state.h"

namespace springtide {

class Breaks {
 public:
  explicit Breaks(const ServerState& state);

  // After a piece of work: seconds rested. 0 until there is enough to rest for, and where nobody asks for
  // rows.
  double take();

 private:
  uint64_t requests() const { return state_.count.pulls + state_.count.pushes; }

  const ServerState& state_;
  uint64_t seen_;        // requests
  double worked_until_;  // seconds of the thread's own processor time: what came before is rested for
};

}  // namespace springtide
