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

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace springtide {

struct ServerState;

struct HandoverOptions {
  std::string host;
  uint16_t port = 0;
  uint16_t server = 0;  // its index
  double timeout_s = 30;
  bool hurry = false;  // this server has hardly any processor left (hurried.h)
};

struct HandoverOutcome {
  std::vector<uint16_t> moved;
  std::vector<uint16_t> kept;      // the target would not have them: they are served here as before
  std::vector<uint16_t> in_doubt;  // closed here, and no answer came: ask again, or take them back
  std::string why;                 // of those not moved
  uint64_t bytes = 0;
  double seconds = 0, longest_freeze_s = 0;
  bool local = false;  // through a Unix socket: the target is on this host
};

// PeerLost when the target cannot be reached or does not know the secret: nothing has changed then.
HandoverOutcome hand_over(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots);

}  // namespace springtide
