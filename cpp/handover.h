// Slots handed to another server while both serve. The source drives: it streams whole images, then what was
// changed meanwhile, then closes each slot and sends the last remainder with the word that it is the
// target's. In: a server's state, a target, slots. Out: what became of each. Next: request_handler.h (take,
// own) over there.
//
//   source                              target
//   declare(tables)               ─►
//   take(image), take(image), ... ─►    laid into closed slots
//   take(what changed), ...       ─►
//   close; own(the remainder)     ─►    opened there: from here on the source names the target
#pragma once

#include <span>

#include "server.h"
#include "server_state.h"

namespace springtide {

// PeerLost when the target cannot be reached or does not know the secret: nothing has changed then.
HandoverOutcome hand_over(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots);

}  // namespace springtide
