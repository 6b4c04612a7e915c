// What all requests of one client share: a connection to each server, the window, where slots are now.
// In: options of a RemoteBackend. Next: remote_pending.h (one request), peer.h (one connection).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "peer.h"
#include "remote_backend.h"

namespace springtide {

struct RemoteLinks {
  explicit RemoteLinks(const RemoteOptions& o);

  void check_process() const;  // BadInput in a forked child
  std::shared_ptr<Call> call_for(const Peer& peer, Kind kind) const;
  // Sends to one server and waits. For what is not on a step's path.
  std::shared_ptr<Call> ask(Peer& peer, Kind kind, std::vector<uint8_t> body, uint64_t step) const;

  void reroute(Placement placement);  // BadInput unless it is newer and names the same servers and slots
  // The newest placement once it is of that epoch at least, or null when none comes until then.
  std::shared_ptr<const Placement> placement_from(uint32_t epoch, Clock::time_point until);

  const RemoteOptions options;  // its placement is what requests are routed by
  const pid_t owner;
  std::vector<uint8_t> owns_any;  // by server: has a slot in that placement
  std::shared_ptr<SharedWindow> shared;
  std::vector<std::unique_ptr<Peer>> peers;

 private:
  std::mutex mutex_;
  std::condition_variable rerouted_;
  std::shared_ptr<const Placement> newest_;
};

}  // namespace springtide
