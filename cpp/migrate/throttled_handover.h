// Hands over the slots of a CPU-throttled server at the least cost to it. Slots are closed in large batches
// and sent whole, without a first pass while they serve: clients would wait for this server anyway, and wait
// at request_pause.h instead. A target on the same host reads the rows out of this process. Called by
// handover.cpp.
#pragma once

#include <span>

#include "migrate/handover.h"
#include "server/requests/server_state.h"

namespace springtide {

// The caller holds `state.handover_mutex`. Slots without a reply are in doubt afterwards.
void hand_over_throttled(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots,
                         HandoverOutcome& outcome);

}  // namespace springtide
