// Backend of tables on servers, over the wire protocol (docs/design/wire.md), one connection per server.
// Next: remote_pending.h (one request), peer.h (one connection).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "step/backend.h"

namespace springtide {

struct RemoteLinks;

struct RemoteOptions {
  std::vector<std::string> hosts;  // of server 0, 1, ...
  std::vector<uint16_t> ports;
  std::string secret;  // of the job; never sent, only proved
  std::string tls;     // folder with this client's certificates (tls_session.h); empty: no TLS
  Placement placement;
  uint32_t rank = 0;
  uint32_t incarnation = 0;  // number of restarts of this rank
  double connect_timeout_s = 30;
  double request_timeout_s = 60;
  double reconnect_s = 5;    // seconds to retry after a connection broke; 0: never
  double recovery_s = 0;     // seconds to wait for a lost server's restart; 0: servers are not restarted
  double follow_s() const {  // seconds for which a slot may be without a known owner
    return reconnect_s > recovery_s ? reconnect_s : recovery_s;
  }
  std::vector<uint32_t> lives;  // incarnations of the servers at these addresses; missing entries are 0
  bool shared_memory = true;    // use shared memory for servers on this host, and TCP for others
  uint32_t generation = 0;      // bsp: increased when the group returns to a checkpoint
};

// Totals of this client over all servers; times are in ns. A request counts once per server. lookup, update: the
// servers' own time in pulls and pushes. sync: time from a request's first byte to its reply's last, minus the server's
// own time. step_wait: time that pulls waited on servers for the previous bsp step. wait: time that callers were
// blocked in Pending::wait. read_by_caller: replies read by the waiting thread itself.
//
// clang-format off
#define SPRINGTIDE_REMOTE_STATS(F) \
  F(pulls) F(pushes) F(pulled_keys) F(pushed_keys) F(bytes_in) F(bytes_out) F(lookup_ns) F(update_ns) F(sync_ns) \
  F(step_wait_ns) F(wait_ns) F(reconnects) F(read_by_caller)
// clang-format on

struct RemoteStats {
  SPRINGTIDE_REMOTE_STATS(SPRINGTIDE_FIGURE)
  std::vector<std::string> transports;  // "tcp" or "shm", server by server
};

class RemoteBackend final : public Backend {
 public:
  // Connects to every server. Client and server prove to each other that they know the secret. Throws PeerLost, which
  // names the server, if a server did not answer in time.
  explicit RemoteBackend(const RemoteOptions& options);
  ~RemoteBackend() override;  // waits for requests in flight, then closes the connections

  std::shared_ptr<const Placement> placement() const override;
  uint64_t declare(std::span<const TableSpec> tables) override;
  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override;

  // Uses the master's newest placement. Usually the client already knows the change, because a refusal names the slot's
  // new owner. Requests follow refusals for `follow_s` before they throw WrongOwner. If a server is new to this client,
  // its address (host:port) is required.
  void reroute(Placement placement, const std::map<uint16_t, std::string>& addresses = {});

  // Names the restarted process of a lost server, which has restored the server's slots. Unanswered requests go to the
  // new address. Ignores older incarnations.
  void readdress(size_t server, uint32_t life, const std::string& host, uint16_t port);

  // For bsp: asks every server that has slots. Throws GroupChanged if the group was re-formed meanwhile. Returns true
  // if all ranks' parts of the step have arrived, and false if they have not within `wait_s` seconds.
  bool step_complete(uint64_t step, double wait_s);
  // Call this function when step `step` is complete on all servers. Later requests of this client see the step applied.
  std::unique_ptr<Pending> apply_step(uint64_t step);
  // Moves this client to a newer generation.
  void set_generation(uint32_t generation);
  // Makes servers refuse older generations. Returns the last step that is complete on all servers.
  uint64_t regroup();
  // Call this function after regroup(). Servers apply the steps up to `step` and drop later ones, and `workers` ranks
  // continue. `at_rest`: true if no rank is in the middle of a step. Servers that got their first slots after the last
  // step join the group at this call.
  void settle_group(uint64_t step, uint32_t workers, bool at_rest = false);

  RemoteStats stats() const;
  // Returns float memory that servers on this host can read and write in place, so that pulls and pushes need no copy.
  // If no server is on this host, it is plain memory. Memory from elsewhere works too, but costs one more copy.
  std::shared_ptr<float> buffer(size_t floats) override;

 private:
  std::shared_ptr<RemoteLinks> links_;  // shared with requests in flight, which may outlive this object
};

}  // namespace springtide
