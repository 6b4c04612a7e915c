// Shared by all requests of one client: a connection per server, the shared window, the current placement.
// Next: remote_pending.h (one request), peer.h (one connection).
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/peer.h"
#include "client/remote_backend.h"
#include "wire/refusal.h"

namespace springtide {

// A placement with what requests need of it.
struct Routes {
  Placement placement;
  std::vector<std::vector<uint16_t>> slots_of;  // by server
  // Until slots move for the first time servers know by the epoch alone which slots a push speaks for.
  bool must_name() const { return placement.version != 0 || placement.epoch > 1; }
};

struct RemoteLinks {
  explicit RemoteLinks(const RemoteOptions& o);

  void check_process() const;  // BadInput in a forked child
  std::shared_ptr<Call> call_for(const Peer& peer, Kind kind) const;
  // Sends to one server and waits. For what is not on a step's path.
  std::shared_ptr<Call> ask(Peer& peer, Kind kind, std::vector<uint8_t> body, uint64_t step) const;

  Peer& peer(size_t server) const;   // stays where it is: a rank is one server for the whole of a job
  Peer* find(size_t server) const;   // null when it was never needed here
  std::vector<Peer*> peers() const;  // those that have slots
  std::shared_ptr<const Routes> routes() const;

  void declare(std::span<const TableSpec> tables);  // also to servers that come later
  // BadInput unless it is no older and names as many slots, and servers that are known or have an address.
  void reroute(Placement placement, const std::map<uint16_t, std::string>& addresses);
  // Whether the refusal says where to go instead; then that is where the slots are from now on.
  bool follow(const Refusal& refusal);
  void set_generation(uint32_t generation);                    // of all servers, also of those that come later
  void wait_for_news(uint64_t version, Clock::duration most);  // until the map has changed
  void add_to(RemoteStats& stats) const;

  const RemoteOptions options;  // its placement is the first one
  const pid_t owner;
  std::shared_ptr<SharedWindow> shared;

 private:
  bool reach(uint16_t server, const std::string& address);  // false: it cannot be reached now
  void put(Placement placement);

  std::mutex reaching_;  // one new connection at a time
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Routes> routes_;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::vector<TableSpec> declared_;
  uint32_t generation_;
};

}  // namespace springtide
