// What all connections of one server share: the tables, who owns which slot, the bsp steps, the counters.
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
#include "server/requests/gifts.h"
#include "server/requests/quiet.h"
#include "server/requests/server_options.h"
#include "store/keys/staleness.h"
#include "store/store.h"

namespace springtide {

struct Owned {
  uint32_t epoch = 0;
  uint32_t slots = 0;
  bool all = true;
  uint32_t newest = 0;               // epoch since which the slot that came last is owned
  std::vector<uint8_t> mine = {};    // by slot; empty: all
  std::vector<uint32_t> since = {};  // by slot: the epoch since which it is owned; kByName: handed over
  std::vector<uint16_t> owner = {};  // by slot: who has it as far as is known here; kNobody: not known
  std::map<uint16_t, std::string> addresses = {};  // host:port of servers that slots went to
};
constexpr size_t kMostStrangers = 64;     // each has a thread; a member needs a few milliseconds among them
constexpr uint32_t kByName = UINT32_MAX;  // only a push that names the slot speaks for it

struct ServerCounters {
  std::atomic<uint64_t> pulls{0}, pushes{0}, assigns{0}, scans{0}, declares{0}, pulled_keys{0},
      pushed_keys{0}, bytes_in{0}, bytes_out{0}, lookup_ns{0}, update_ns{0}, step_wait_ns{0}, created{0},
      evicted{0}, connections{0}, accepted{0}, shared{0}, refused{0}, bad_frames{0}, stalled{0},
      wrong_owner_keys{0}, repeated_keys{0};
};

struct ServerState {
  ServerState(Store& tables, const ServerOptions& o)
      : store(tables),
        options(o),
        steps(tables, o.workers),
        handshakes(kMostStrangers, o.handshake_s),
        owned(std::make_shared<const Owned>(Owned{.slots = tables.slots()})) {}

  std::shared_ptr<const Owned> ownership() const {
    const std::lock_guard lock(mutex);
    return owned;
  }
  void change_ownership(const std::function<void(Owned&)>& how);
  // Their gates are closed already.
  void gave(std::span<const uint16_t> slots, uint16_t to, const std::string& address);
  void got(std::span<const uint16_t> slots);  // their gates are open already
  void gave(uint16_t slot, uint16_t to, const std::string& address) { gave({&slot, 1}, to, address); }
  void got(uint16_t slot) { got({&slot, 1}); }
  void doubt(uint16_t slot, uint16_t server);
  bool settle_doubt(uint16_t slot);  // whether there was one
  std::map<uint16_t, uint16_t> doubts() const;
  void expects(uint32_t slot);  // an image has come: whose it is now is decided between two others
  ServerStats stats() const;
  // Frames of older ones are refused from now on.
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
  std::shared_mutex taking;         // held by a peer's slot that arrives; all of it for:
  std::atomic<uint64_t> turn{0};    // slots come only over connections made since it was raised last
  std::atomic<bool> leaves{false};  // takes no slots any more
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> serving{0};       // requests at this moment
  Quiet quiet;                            // rows are neither read nor written while slots go in a hurry
  Gifts gifts;                            // of peers
  std::mutex handing;                     // one hand-over at a time; also of:
  std::map<uint16_t, uint64_t> given;     // by slot: the name of the last gift, which is kept while in doubt
  mutable std::mutex mutex;               // of what follows
  std::map<uint16_t, uint16_t> in_doubt;  // slots closed for a server whose answer never came
  std::shared_ptr<const Owned> owned;
};

}  // namespace springtide
