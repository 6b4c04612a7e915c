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
  uint32_t index = 0;    // of this server in the job
  uint32_t workers = 1;  // bsp: parts per step
  uint32_t threads = 1;  // of the store: sizes the pieces of a pull
  bool shared_memory = true;
  uint32_t max_connections = 1024;  // after the handshake; pending handshakes have their own limit
  uint64_t max_frame_bytes = 1ULL << 30;
  double handshake_s = 10;  // whole handshake, from accept() on
  double stall_s = 30;      // drop a peer that stops mid-frame or reads no reply for this long
  double step_wait_s = 300;
  uint32_t credit_requests = 64;  // requests in flight per client
  uint64_t credit_bytes = 256ULL << 20;
};

// Totals since the start. The field order is also the body of a Kind::stats reply.
struct ServerStats {
  uint64_t pulls = 0, pushes = 0, assigns = 0, scans = 0, declares = 0;
  uint64_t pulled_keys = 0, pushed_keys = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  // headers and bodies, shared memory included
  uint64_t lookup_ns = 0, update_ns = 0, step_wait_ns = 0;
  uint64_t created = 0, evicted = 0;
  uint64_t connections = 0;  // open now, after the handshake
  uint64_t accepted = 0;     // handshakes completed
  uint64_t shared = 0;       // of `accepted`, over shared memory
  uint64_t refused = 0;      // bad version or secret, or too many connections
  uint64_t bad_frames = 0;   // malformed, truncated or oversized
  uint64_t stalled = 0;      // dropped after stall_s
  uint64_t wrong_owner_keys = 0;
  uint64_t repeated_keys = 0;  // pushed again and skipped: their slots had these batches
  uint64_t applied_step = 0;   // bsp
  // Pushes applied between the read of a push's rows and its own application.
  uint64_t staleness_p50 = 0, staleness_max = 0;
};

}  // namespace springtide
