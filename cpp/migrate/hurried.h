// Slots of a server that has hardly any processor left, handed over at the least cost to it: many at a time
// are closed and given at once, whole. There is no first pass while they serve: who asks for them would wait
// for this server anyway, and waits at its door instead (quiet.h). On one host the target reads the rows out
// of this process itself. In: a server's state, a target, slots. Out: what became of each. Called by
// handover.cpp.
#pragma once

#include <span>

#include "migrate/handover.h"
#include "server/requests/server_state.h"

namespace springtide {

// The caller holds `state.handing`. Slots that no answer came for are in doubt then.
void give_all(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots,
              HandoverOutcome& outcome);

}  // namespace springtide
