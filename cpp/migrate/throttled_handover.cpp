#include "migrate/throttled_handover.h"

#include <sys/prctl.h>

#include <algorithm>
#include <set>

#include "migrate/slot_target.h"
#include "slots/slot_batch.h"
#include "slots/slot_reference.h"
#include "wire/wire_tables.h"

namespace springtide {
namespace {

// In one batch: a large slot goes with few others. None of them can be used until all of them are there.
constexpr size_t kSlotsABatch = 1024;
constexpr uint64_t kBytesABatch = 32 << 20;

double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// The target may read this process meanwhile, where a process must permit that (Yama).
class PermitReading {
 public:
  explicit PermitReading(const SlotTarget& target) : reader_(target.local() ? peer_process(target.fd()) : 0) {
    if (given()) prctl(PR_SET_PTRACER, reader_, 0, 0, 0);
  }
  ~PermitReading() {
    if (given()) prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  }
  PermitReading(const PermitReading&) = delete;
  PermitReading& operator=(const PermitReading&) = delete;
  bool given() const { return reader_ != 0; }

 private:
  const int reader_;
};

class ThrottledMover {
 public:
  ThrottledMover(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : state_(state), to_(to), target_(state, to), outcome_(outcome) {
    outcome_.local = target_.local();
  }

  // Throws PeerLost in the middle. Requests go on as soon as slots are the target's; here they are cleared
  // then.
  void give(std::span<const uint16_t> slots, RequestPause::Scope& pause) {
    FrameHeader answered;
    target_.send(Kind::declare, 0, encode_tables(state_.store.tables()));
    if (const std::string why = target_.receive(answered); !why.empty()) {
      closed.insert(slots.begin(), slots.end());  // those that an earlier try has closed are open again then
      return settle(slots, {{}, why});
    }
    const PermitReading permit(target_);
    bool by_reference = permit.given();
    while (!slots.empty()) {
      const Clock::time_point at = Clock::now();
      const std::span<const uint16_t> some = slots.first(few(slots));
      close(some);
      BatchAnswer answer = say(some, by_reference);
      if (by_reference && answer.taken.empty()) {  // it cannot read here: it gets the rows themselves
        by_reference = false;
        answer = say(some, false);
      }
      outcome_.longest_freeze_s = std::max(outcome_.longest_freeze_s, since(at));
      pause.release_waiting();
      settle(some, answer);
      slots = slots.subspan(some.size());
    }
  }

  std::set<uint16_t> closed;  // and no answer yet

 private:
  // How many of the first ones make a batch.
  size_t few(std::span<const uint16_t> slots) {
    uint64_t bytes = 0;
    size_t count = 0;
    while (count < slots.size() && count < kSlotsABatch && (count == 0 || bytes < kBytesABatch)) {
      bytes += state_.store.load(slots[count++]).bytes;
    }
    return count;
  }

  void close(std::span<const uint16_t> some) {
    for (const uint16_t slot : some) {
      closed.insert(slot);
      state_.store.close_slot(slot);
    }
    state_.record_given(some, to_.server, to_.host + ":" + std::to_string(to_.port));
  }

  BatchAnswer say(std::span<const uint16_t> some, bool by_reference) {
    BatchWriter batch(by_reference);
    for (const uint16_t slot : some) {
      batch.begin(slot, state_.transfer_ids.at(slot));
      if (by_reference) {
        state_.store.refer(slot, reference_);
        encode(reference_, batch.bytes());
      } else {
        state_.store.export_slot(slot, 0, image_);
        batch.add(image_.bytes());
      }
      batch.end();
    }
    outcome_.bytes += batch.bytes().size();
    target_.send(Kind::own_all, 0, batch.bytes());
    FrameHeader header;
    std::vector<uint8_t> body;
    const std::string why = target_.receive(header, body);
    return why.empty() ? decode_answer(body) : BatchAnswer{{}, why};
  }

  void settle(std::span<const uint16_t> some, const BatchAnswer& answer) {
    for (const uint16_t slot : answer.taken) {
      if (closed.erase(slot) == 0) throw PeerLost("accepted a slot that was not offered");
      state_.store.clear_slot(slot);
      outcome_.moved.push_back(slot);
    }
    for (const uint16_t slot : some) {
      if (closed.erase(slot) == 0) continue;
      state_.store.open_slot(slot);
      state_.record_received(slot);
      outcome_.kept.push_back(slot);
      outcome_.why = answer.why;
    }
  }

  ServerState& state_;
  const HandoverOptions& to_;
  SlotTarget target_;
  HandoverOutcome& outcome_;
  ImageWriter image_;
  SlotReference reference_;
};

}  // namespace

void hand_over_throttled(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots,
                         HandoverOutcome& outcome) {
  RequestPause::Scope pause(state.request_pause);
  try {
    ThrottledMover mover(state, to, outcome);
    try {
      mover.give(slots, pause);
    } catch (const std::exception& e) {
      for (const uint16_t slot : mover.closed) state.mark_in_doubt(slot, to.server);
      outcome.why = e.what();
    }
  } catch (const PeerLost& e) {
    outcome.why = e.what();
  }
}

}  // namespace springtide
