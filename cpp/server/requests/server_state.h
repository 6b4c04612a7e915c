// State shared by all connections of one server: the tables, slot ownership, bsp steps, counters.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "net/handshake.h"
#include "server/requests/bsp_steps.h"
#include "store/store.h"

namespace springtide {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0 means any free port
  std::string secret;
  std::string tls;       // folder with this server's certificates (tls_session.h); empty: no TLS
  uint32_t index = 0;    // of this server in the job
  uint32_t workers = 1;  // bsp: number of parts per step
  bool shared_memory = true;
  uint32_t max_connections = 1024;  // connections that completed the handshake; pending handshakes have their own limit
  uint64_t max_frame_bytes = 1ULL << 30;
  double handshake_s = 10;  // seconds for a whole handshake, from accept() on
  double stall_s = 30;      // drop a peer that stops in the middle of a frame or reads no reply for this many seconds
  double step_wait_s = 300;
  uint32_t credit_requests = 64;  // number of requests that each client may have in flight
  uint64_t credit_bytes = 256ULL << 20;
};

// Totals since the start. `connections`: open now; `shared`: accepted connections with a shared window; `refused`: bad
// version or secret, or too many; `bad_frames`: malformed, truncated or oversized; `stalled`: dropped after stall_s;
// `repeated_keys`: keys that were pushed again and skipped, because their slots had applied these batches.
//
// clang-format off
#define SPRINGTIDE_SERVER_COUNTS(F) \
  F(pulls) F(pushes) F(assigns) F(scans) F(declares) F(pulled_keys) F(pushed_keys) F(bytes_in) F(bytes_out) \
  F(lookup_ns) F(update_ns) F(step_wait_ns) F(created) F(evicted) F(connections) F(accepted) F(shared) \
  F(refused) F(bad_frames) F(stalled) F(wrong_owner_keys) F(repeated_keys)
// clang-format on

// The field order is also the body of a Kind::stats reply.
struct ServerStats {
  SPRINGTIDE_SERVER_COUNTS(SPRINGTIDE_FIGURE)
  uint64_t applied_step = 0;  // bsp
  // Staleness of pushes: pushes applied between the read of a push's rows and the push itself.
  uint64_t staleness_p50 = 0, staleness_max = 0;
};

// This server's decisions about slot transfers that other servers have offered. If a source gets no reply, it offers
// the slot again. By the time of the second offer, this server may have passed the slot on. Every transfer therefore
// has an id, which stays the same in each attempt. A transfer is accepted or refused only once. slot_requests.cpp uses
// this class; handover.cpp draws the ids.
class TransferLog {
 public:
  enum class Outcome { unknown, accepted, refused };

  // random, never 0
  static uint64_t new_id() {
    std::random_device random;
    uint64_t id = 0;
    while (id == 0) id = static_cast<uint64_t>(random()) << 32 | random();
    return id;
  }

  // Hold the lock from `outcome` to `record`, because the same transfer may arrive over two connections at the same
  // time.
  std::unique_lock<std::mutex> lock(uint32_t slot) { return std::unique_lock(stripes_[slot % stripes_.size()]); }
  // Returns Unknown for id 0, which means a transfer without an id.
  Outcome outcome(uint32_t slot, uint64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(slot);
    if (id == 0 || found == entries_.end()) return Outcome::unknown;
    const auto& all = found->second;
    const auto entry = std::find_if(all.begin(), all.end(), [&](const Entry& e) { return e.id == id; });
    return entry == all.end() ? Outcome::unknown : entry->outcome;
  }
  // Records the outcome. If the id already has an outcome, this has no effect.
  void record(uint32_t slot, uint64_t id, Outcome outcome) {
    if (id == 0 || this->outcome(slot, id) != Outcome::unknown) return;
    const std::lock_guard lock(mutex_);
    auto& all = entries_[slot];
    all.push_back({id, outcome});
    if (all.size() > kEntriesPerSlot) all.pop_front();
  }

 private:
  // A few entries suffice, because a source repeats an offer only for a heartbeat or two, until it has the newest
  // placement.
  static constexpr size_t kEntriesPerSlot = 64;
  struct Entry {
    uint64_t id;
    Outcome outcome;
  };
  std::array<std::mutex, 64> stripes_;
  mutable std::mutex mutex_;  // guards entries_
  std::map<uint32_t, std::deque<Entry>> entries_;
};

// Pauses requests while a CPU-throttled server hands its slots over. All threads share the CPU quota. Threads that
// serve requests would use it up, and the hand-over would wait for the next quota period after each frame.
class RequestPause {
 public:
  // Requests wait while a Scope exists. Only one Scope may exist at a time.
  class Scope : public NoCopy {
   public:
    explicit Scope(RequestPause& pause) : pause_(pause) { pause_.set_active(true); }
    ~Scope() { pause_.set_active(false); }
    // Call this function when slots have a new owner. Requests that wait now continue, and learn of the new owner.
    void release_waiting() { pause_.set_active(true); }

   private:
    RequestPause& pause_;
  };

  // Blocks a request until release_waiting(), the end of the scope, or kLongestWait.
  void wait() {
    if (!active_) return;
    std::unique_lock lock(mutex_);
    const uint64_t round = rounds_;
    changed_.wait_for(lock, kLongestWait, [&] { return !active_ || rounds_ != round; });
  }

 private:
  // A target that does not answer must not block requests for slots that this server still owns.
  static constexpr std::chrono::seconds kLongestWait{2};

  void set_active(bool active) {
    {
      const std::lock_guard lock(mutex_);
      active_ = active;
      ++rounds_;
    }
    changed_.notify_all();
  }

  std::atomic<bool> active_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t rounds_ = 0;
};

// Staleness of pushes: how many other pushes were applied after a push's rows were read and before it was applied. Out:
// median and maximum, for the statistics of the server.
class Staleness {
 public:
  // Returns the number of pushes that changed rows of this server. The reply to a pull contains this number, and the
  // push of the same step sends it back.
  uint64_t applied() const { return applied_.load(std::memory_order_relaxed); }

  void push_applied() { applied_.fetch_add(1, std::memory_order_relaxed); }
  // Counts a push. When its rows were read, `seen` pushes had been applied.
  void push_applied(uint64_t seen) {
    const uint64_t before = applied_.fetch_add(1, std::memory_order_relaxed);
    const uint64_t lag = before - std::min(before, seen);
    pushes_[std::min<uint64_t>(lag, kCounted)].fetch_add(1, std::memory_order_relaxed);
    uint64_t most = most_.load(std::memory_order_relaxed);
    while (most < lag && !most_.compare_exchange_weak(most, lag, std::memory_order_relaxed)) {
    }
  }

  uint64_t median() const {
    uint64_t all = 0;
    for (const auto& count : pushes_) all += count.load(std::memory_order_relaxed);
    uint64_t below = 0;
    for (size_t lag = 0; lag <= kCounted; ++lag) {
      below += pushes_[lag].load(std::memory_order_relaxed);
      if (2 * below >= all) return lag;
    }
    return kCounted;
  }
  uint64_t most() const { return most_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kCounted = 1024;  // for the median, a longer lag counts as this lag

  std::atomic<uint64_t> applied_{0}, most_{0};
  std::array<std::atomic<uint64_t>, kCounted + 1> pushes_{};  // by lag
};

// A snapshot of the slots that this server owns, and of the owners of all other slots. The snapshot is updated after
// slots of the store are opened or closed.
struct SlotOwnership {
  uint32_t epoch = 0;
  uint32_t slots = 0;
  bool all = true;
  uint32_t newest = 0;             // highest epoch in `since`
  std::vector<uint8_t> mine = {};  // by slot; empty: all
  // by slot: the epoch since which it is owned; kNamedOnly if it was received by a hand-over
  std::vector<uint32_t> since = {};
  std::vector<uint16_t> owner = {};  // by slot: its owner as far as this server knows; kNoOwner if unknown
  std::map<uint16_t, std::string> addresses = {};  // host:port of the servers to which slots have gone
};
constexpr size_t kMaxPendingHandshakes = 64;  // each has a thread; a handshake takes only a few milliseconds
constexpr uint32_t kNamedOnly = UINT32_MAX;   // only a push that names the slot covers it

struct ServerCounters {
#define SPRINGTIDE_COUNTER(name) std::atomic<uint64_t> name{0};
  SPRINGTIDE_SERVER_COUNTS(SPRINGTIDE_COUNTER)
#undef SPRINGTIDE_COUNTER
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
  void change_ownership(const std::function<void(SlotOwnership&)>& how) {
    const std::lock_guard lock(mutex);
    auto changed = std::make_shared<SlotOwnership>(*owned);
    how(*changed);
    changed->all = std::ranges::all_of(changed->mine, [](uint8_t mine) { return mine != 0; });
    owned = std::move(changed);
  }
  // Call this function after the slots are closed.
  void record_given(std::span<const uint16_t> slots, uint16_t to, const std::string& address) {
    change_ownership([&](SlotOwnership& now) {
      for (const uint16_t slot : slots) {
        now.mine[slot] = 0;
        now.owner[slot] = to;
      }
      now.addresses[to] = address;
    });
  }
  // Call this function after the slots are open.
  void record_received(std::span<const uint16_t> slots) {
    if (slots.empty()) return;
    change_ownership([&](SlotOwnership& now) {
      for (const uint16_t slot : slots) {
        now.mine[slot] = 1;
        now.since[slot] = now.newest = kNamedOnly;
        now.owner[slot] = static_cast<uint16_t>(options.index);
      }
    });
  }
  void mark_in_doubt(uint16_t slot, uint16_t server) {
    const std::lock_guard lock(mutex);
    in_doubt[slot] = server;
  }
  // Returns true if the slot was in doubt.
  bool clear_in_doubt(uint16_t slot) {
    const std::lock_guard lock(mutex);
    return in_doubt.erase(slot) != 0;
  }
  std::map<uint16_t, uint16_t> slots_in_doubt() const {
    const std::lock_guard lock(mutex);
    return in_doubt;
  }
  // Call this function when the slot's image arrives, because the slot's next owner is not decided yet.
  void mark_owner_unknown(uint32_t slot) {
    if (ownership()->owner[slot] == kNoOwner) return;
    change_ownership([&](SlotOwnership& now) { now.owner[slot] = kNoOwner; });
  }
  ServerStats stats() const {
    ServerStats now;
#define SPRINGTIDE_READ(name) now.name = count.name;
    SPRINGTIDE_SERVER_COUNTS(SPRINGTIDE_READ)
#undef SPRINGTIDE_READ
    now.applied_step = steps.applied();
    now.staleness_p50 = staleness.median(), now.staleness_max = staleness.most();
    return now;
  }
  // From now on, frames of older generations are refused.
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
  std::shared_mutex import_mutex;  // shared by imports of slots, and exclusive to change the next two members
  // slots are accepted only over connections that were opened in the current epoch
  std::atomic<uint64_t> import_epoch{0};
  std::atomic<bool> draining{false};  // true if this server accepts no more slots
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> serving{0};  // number of requests that are being served
  RequestPause request_pause;        // blocks requests during a throttled hand-over
  TransferLog transfers;             // transfers that other servers have offered
  std::mutex handover_mutex;         // allows one hand-over at a time; guards transfer_ids
  // by slot: id of the last transfer, which is used again while the slot is in doubt
  std::map<uint16_t, uint64_t> transfer_ids;
  mutable std::mutex mutex;  // guards the members below
  // slots that are closed here and whose new owner has not replied, each with that server
  std::map<uint16_t, uint16_t> in_doubt;
  std::shared_ptr<const SlotOwnership> owned;
};

}  // namespace springtide
