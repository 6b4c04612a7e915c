// Hands slots to a second server while both servers serve requests. The source server controls the hand-over: it sends
// whole images, then the rows that changed meanwhile. Then the source closes several slots together, sends their last
// changes and transfers ownership. Next: server/requests/slot_requests.cpp, the target's side.
//
//   source                              target
//   declare(tables)               ─►
//   take(image), take(image), ... ─►    imported into closed slots
//   take(changed rows), ...       ─►
//   close some; own_all(the rest) ─►    opened there; from here on the source names the target as owner
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
  uint16_t server = 0;  // index of the target
  double timeout_s = 30;
  bool hurry = false;  // this server is CPU-throttled (ThrottledMover)
};

struct HandoverOutcome {
  std::vector<uint16_t> moved;
  std::vector<uint16_t> kept;  // slots that the target refused, and that this server still serves
  // slots that are closed here but to which the target has not replied: hand them over again, or take them back
  std::vector<uint16_t> in_doubt;
  std::string why;  // reason why the other slots were not moved
  uint64_t bytes = 0;
  double seconds = 0, longest_freeze_s = 0;
  bool local = false;  // true if a Unix socket is used, because the target is on this host
};

// Throws PeerLost and changes nothing if the target cannot be reached or does not know the secret.
HandoverOutcome hand_over(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots);

}  // namespace springtide
