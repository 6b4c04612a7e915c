// Options and statistics of a parameter server.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace springtide
