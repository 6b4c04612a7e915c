// A parameter server: a Store behind a TCP port (and a local socket with shared memory), one blocking thread
// a connection. Python only starts, stops and watches it. Requests are served in request_handler.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store.h"

namespace springtide {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: a free one
  std::string secret;
  std::string tls;       // folder of this server's certificates (tls_context.h); empty: no TLS
  uint32_t index = 0;    // which server of the job this is
  uint32_t workers = 1;  // bsp: parts of one step
  uint32_t threads = 1;  // of the store: pieces of a pull are then large enough for all of them
  bool shared_memory = true;
  uint32_t max_connections = 1024;  // of members; others have a few places of their own
  uint64_t max_frame_bytes = 1ULL << 30;
  double handshake_s = 10;  // for all of a handshake, from accept() on
  double stall_s =
      30;  // a peer that stops in the middle of a frame, or takes no reply, for longer is dropped
  double step_wait_s = 300;
  uint32_t credit_requests = 64;  // a client's requests under way
  uint64_t credit_bytes = 256ULL << 20;
};

// Sums since the start. Plain numbers in a fixed order: also the body of a reply to Kind::stats.
struct ServerStats {
  uint64_t pulls = 0, pushes = 0, assigns = 0, scans = 0, declares = 0;
  uint64_t pulled_keys = 0, pushed_keys = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  // bodies and headers, also those that lay in shared memory
  uint64_t lookup_ns = 0, update_ns = 0, step_wait_ns = 0;
  uint64_t created = 0, evicted = 0;
  uint64_t connections = 0;  // open now, of members
  uint64_t accepted = 0;     // ever, with the secret proved
  uint64_t shared = 0;       // of these, over shared memory
  uint64_t refused = 0;      // version, secret, too many
  uint64_t bad_frames = 0;   // nonsense, torn, oversized
  uint64_t stalled = 0;      // dropped for stopping in the middle
  uint64_t wrong_owner_keys = 0;
  uint64_t repeated_keys = 0;  // pushed again, skipped: their slots had these batches
  uint64_t applied_step = 0;   // bsp
  // Of a push: pushes applied between the reading of its rows and its own application.
  uint64_t staleness_p50 = 0, staleness_max = 0;
};

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

class Server {
 public:
  Server(Store& store, const ServerOptions& options);  // the store must outlive it
  ~Server();                                           // stops at once
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();  // PortTaken, BadInput
  std::string host() const;
  uint16_t port() const;
  // owners[slot] is the server that has the slot; those of this server's index are its own. Until the first
  // call it takes every slot for its own. BadInput for another number of slots, or an epoch lower than the
  // last.
  void set_placement(uint32_t epoch, const std::vector<uint16_t>& owners);
  // Who has the slots that are not this server's, for those it refuses. Its own slots stay as they are.
  void learn_placement(uint32_t epoch, const std::vector<uint16_t>& owners,
                       const std::map<uint16_t, std::string>& addresses);
  // Gives slots to another server while both serve (handover.h).
  HandoverOutcome hand_over(const HandoverOptions& to, std::span<const uint16_t> slots);
  bool let_go(uint32_t slot);     // after a hand-over in doubt, whose target is known to have the slot
  void take_no_more(bool yes);    // before it leaves: slots that are given from now on are refused
  void expect_anew();             // refuses slots over connections that were made before
  bool take_back(uint32_t slot);  // after a hand-over in doubt, whose target is known to be lost
  std::vector<uint16_t> owned() const;
  // bsp: the group goes back; frames of an older generation are refused from now on.
  void set_generation(uint32_t generation, uint32_t workers);
  ServerStats stats() const;
  // No new connections; requests that have arrived are answered, for `drain_s` at most. Twice is fine.
  void stop(double drain_s);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace springtide
