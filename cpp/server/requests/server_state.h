// State shared by all connections of one server: the tables, slot ownership, bsp steps, counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "net/pending_handshakes.h"
#include "server/requests/bsp_steps.h"
#include "server/requests/request_pause.h"
#include "server/requests/server_options.h"
#include "server/requests/transfer_log.h"
#include "store/keys/staleness.h"
#include "store/store.h"

namespace springtide {

// A snapshot of which slots this server owns and who owns the others. The store's open slots are the truth
// about its own; snapshots follow them.
struct SlotOwnership {
  uint32_t epoch = 0;
  uint32_t slots = 0;
  bool all = true;
  uint32_t newest = 0;               // highest epoch in `since`
  std::vector<uint8_t> mine = {};    // by slot; empty: all
  std::vector<uint32_t> since = {};  // by slot: owned since this epoch; kNamedOnly: received by a hand-over
  std::vector<uint16_t> owner = {};  // by slot: its owner as far as known here; kNoOwner: unknown
  std::map<uint16_t, std::string> addresses = {};  // host:port of servers that slots went to
};
constexpr size_t kMaxPendingHandshakes = 64;  // each has a thread; a handshake takes a few milliseconds
constexpr uint32_t kNamedOnly = UINT32_MAX;   // only a push that names the slot covers it

struct ServerCounters {
  std::atomic<uint64_t> pulls{0}, pushes{0}, assigns{0}, scans{0}, declares{0}, pulled_keys{0}, pushed_keys{0},
      bytes_in{0}, bytes_out{0}, lookup_ns{0}, update_ns{0}, step_wait_ns{0}, created{0}, evicted{0}, connections{0},
      accepted{0}, shared{0}, refused{0}, bad_frames{0}, stalled{0}, wrong_owner_keys{0}, repeated_keys{0};
};

struct ServerState {
  ServerState(Store& tables, const ServerOptions& o)
      : store(tables),
        options(o),
        steps(tables, o.workers),
        handshakes(kMaxPendingHandshakes, o.handshake_s),
        owned(std::make_shared<const SlotOwnership>(SlotOwnership{.slots = tables.slots()})) {}

  std::shared_ptr<const SlotOwnership> ownership() const {
    const std::lock_guard lock(mutex);
    return owned;
  }
  void change_ownership(const std::function<void(SlotOwnership&)>& how);
  // The slots are closed already.
  void record_given(std::span<const uint16_t> slots, uint16_t to, const std::string& address);
  void record_received(std::span<const uint16_t> slots);  // the slots are open already
  void record_given(uint16_t slot, uint16_t to, const std::string& address) { record_given({&slot, 1}, to, address); }
  void record_received(uint16_t slot) { record_received({&slot, 1}); }
  void mark_in_doubt(uint16_t slot, uint16_t server);
  bool clear_in_doubt(uint16_t slot);  // returns whether it was in doubt
  std::map<uint16_t, uint16_t> slots_in_doubt() const;
  void mark_owner_unknown(uint32_t slot);  // its image is arriving: two other servers decide who owns it
  ServerStats stats() const;
  // Frames of older generations are refused from now on.
  void raise_generation(uint32_t to) {
    for (uint32_t now = generation; now < to && !generation.compare_exchange_weak(now, to);) {
    }
  }

  Store& store;
  const ServerOptions options;
  BspSteps steps;
  PendingHandshakes handshakes;
  ServerCounters count;
  Staleness staleness;
  std::atomic<uint32_t> generation{0};
  std::shared_mutex import_mutex;         // shared by slot imports; exclusive to change the next two
  std::atomic<uint64_t> import_epoch{0};  // slots are accepted only over connections made in the current one
  std::atomic<bool> draining{false};      // accepts no slots any more
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> serving{0};           // requests being served
  RequestPause request_pause;                 // blocks requests during a throttled hand-over
  TransferLog transfers;                      // offered by peers
  std::mutex handover_mutex;                  // one hand-over at a time; guards transfer_ids
  std::map<uint16_t, uint64_t> transfer_ids;  // by slot: id of the last transfer, reused while in doubt
  mutable std::mutex mutex;                   // guards the members below
  std::map<uint16_t, uint16_t> in_doubt;      // slots closed for a server that never replied
  std::shared_ptr<const SlotOwnership> owned;
};

}  // namespace springtide
