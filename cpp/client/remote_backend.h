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
  std::string tls;     // folder of this client's certificates (tls_session.h); empty: no TLS
  Placement placement;
  uint32_t rank = 0;
  uint32_t incarnation = 0;  // how often this rank was started again
  double connect_timeout_s = 30;
  double request_timeout_s = 60;
  double reconnect_s = 5;    // how long to try to reach a server again after its connection broke; 0: not at all
  double recovery_s = 0;     // and how long for its next life, where someone starts lost servers again
  double follow_s() const {  // how long a slot may have no owner that anybody names
    return reconnect_s > recovery_s ? reconnect_s : recovery_s;
  }
  std::vector<uint32_t> lives;  // incarnations of the servers at those addresses; 0 where it is shorter
  bool shared_memory = true;    // where a server is on this host; TCP elsewhere
  uint32_t generation = 0;      // bsp: raised when the group goes back to a checkpoint
};

// Totals of this client over all servers; times in ns. A request counts once per server. lookup, update: the servers'
// own time in pulls and pushes. sync: from a request's first byte to its reply's last, less the server's own time.
// step_wait: pulls that waited on servers for the bsp step before. wait: callers blocked in Pending::wait.
// read_by_caller: replies read by the waiting thread itself.
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
  // Connects to every server and proves the secret both ways; PeerLost names the server that did not come up in time.
  explicit RemoteBackend(const RemoteOptions& options);
  ~RemoteBackend() override;  // waits for what is under way, then closes

  std::shared_ptr<const Placement> placement() const override;
  void declare(std::span<const TableSpec> tables) override;
  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override;

  // The master's newest placement. Mostly the client knows already: a refusal names the slot's new owner, which
  // requests follow for `follow_s` before WrongOwner. Servers unknown to this client need an address (host:port).
  void reroute(Placement placement, const std::map<uint16_t, std::string>& addresses = {});

  // The next life of a lost server, with its slots restored: unanswered requests go there. Ignores older lives.
  void readdress(size_t server, uint32_t life, const std::string& host, uint16_t port);

  // bsp, on every server that has slots. GroupChanged when the group was formed anew meanwhile.
  // Whether all ranks' parts of the step are there; false after `wait_s`.
  bool step_complete(uint64_t step, double wait_s);
  // It is complete on all servers: what this client asks for from now on sees it applied.
  std::unique_ptr<Pending> apply_step(uint64_t step);
  // Takes this client to a newer generation.
  void set_generation(uint32_t generation);
  // Refuses older generations from now on; the last step that is complete on all servers.
  uint64_t regroup();
  // After regroup(): steps up to this one are applied, others dropped, `workers` ranks go on. `at_rest`:
  // nobody has a step in hand; servers that have got their first slots since the last step join after it.
  void settle_group(uint64_t step, uint32_t workers, bool at_rest = false);

  RemoteStats stats() const;
  // Float memory that same-host servers read and write in place, so that a pull or push of it is not copied;
  // plain memory when no server is on this host. Any other memory works too, at one copy more.
  std::shared_ptr<float> buffer(size_t floats) override;

 private:
  std::shared_ptr<RemoteLinks> links_;  // requests under way keep it: they may outlive this object
};

}  // namespace springtide
