// Slots handed to another server while both serve. The source drives: it streams whole images, then what was
// changed meanwhile, then closes some slots together and sends what is left of them with the word that they
// are the target's. In: a server's state, a target, slots. Out: what became of each. Next: request_handler.h
// (take, own_all) over there.
//
//   source                              target
//   declare(tables)               ─►
//   take(image), take(image), ... ─►    laid into closed slots
//   take(what changed), ...       ─►
//   close some; own_all(the rest) ─►    opened there: from here on the source names the target
#pragma once

#include <span>

#include "server.h"
#include "server_state.h"

namespace springtide {

// PeerLost when the target cannot be reached or does not know the secret: nothing has changed then.
HandoverOutcome hand_over(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots);

}  // namespace springtide
