#include "migrate/handover.h"

#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>

#include "migrate/slot_stream.h"
#include "net/frame_io.h"
#include "server/requests/server_state.h"
#include "slots/slot_batch.h"
#include "slots/slot_image.h"
#include "wire/wire.h"

namespace springtide {

namespace {

// Limits of one batch of slots. No slot of a batch can be used until the whole batch has arrived.
constexpr size_t kSlotsABatch = 1024;
constexpr uint64_t kBytesABatch = 32 << 20;

// Permits other processes, such as the target, to read this process's memory (needed under Yama).
class PermitReading : public NoCopy {
 public:
  explicit PermitReading(const SlotTarget& target) : reader_(target.local() ? peer_process(target.fd()) : 0) {
    if (given()) prctl(PR_SET_PTRACER, reader_, 0, 0, 0);
  }
  ~PermitReading() {
    if (given()) prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  }
  bool given() const { return reader_ != 0; }

 private:
  const int reader_;
};

// Slots that an attempt to hand over has closed, and what became of them.
class Attempt {
 public:
  Attempt(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : state_(state), to_(to), outcome_(outcome) {}

  std::set<uint16_t> closed;  // closed slots without a reply yet

 protected:
  bool declare(SlotTarget& target, std::span<const uint16_t> slots) {
    FrameHeader answer;
    target.send(Kind::declare, 0, encode_tables(state_.store.tables()));
    const std::string why = target.receive(answer);
    if (why.empty()) return true;
    for (const uint16_t slot : slots) keep(slot, why);
    return false;
  }
  void record_given(std::span<const uint16_t> slots) {
    state_.record_given(slots, to_.server, to_.host + ":" + std::to_string(to_.port));
  }
  void keep(uint16_t slot, const std::string& why) {
    if (state_.ownership()->mine[slot] == 0) {  // closed now or in an earlier attempt, and not yet at the target
      state_.store.open_slot(slot);
      state_.record_received({&slot, 1});
    }
    outcome_.kept.push_back(slot);
    outcome_.why = why;
  }
  void settle(std::span<const uint16_t> offered, const BatchAnswer& answer) {
    for (const uint16_t slot : answer.taken) {
      if (closed.erase(slot) == 0) throw PeerLost("accepted a slot that this server did not offer");
      state_.store.clear_slot(slot);
      outcome_.moved.push_back(slot);
    }
    for (const uint16_t slot : offered) {
      if (closed.erase(slot) != 0) keep(slot, answer.why);
    }
  }

  ServerState& state_;
  const HandoverOptions& to_;
  HandoverOutcome& outcome_;
};

// Hands over the slots of a CPU-throttled server with as little CPU as possible. This function closes the slots in
// large batches and sends them whole, while clients wait at RequestPause. A target on the same host reads the rows from
// this process's memory.
class ThrottledMover : public Attempt {
 public:
  ThrottledMover(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : Attempt(state, to, outcome), target_(state, to) {
    outcome_.local = target_.local();
  }

  // This may throw PeerLost at any point. Requests continue as soon as the target owns the slots. Then the slots are
  // cleared on this server.
  void give(std::span<const uint16_t> slots, RequestPause::Scope& pause) {
    if (!declare(target_, slots)) return;
    const PermitReading permit(target_);
    bool by_reference = permit.given();
    while (!slots.empty()) {
      const Clock::time_point at = Clock::now();
      const std::span<const uint16_t> some = slots.first(few(slots));
      close(some);
      BatchAnswer answer = say(some, by_reference);
      // the target cannot read this process's memory, so send the rows themselves
      if (by_reference && answer.taken.empty()) {
        by_reference = false;
        answer = say(some, false);
      }
      outcome_.longest_freeze_s = std::max(outcome_.longest_freeze_s, since(at));
      pause.release_waiting();
      settle(some, answer);
      slots = slots.subspan(some.size());
    }
  }

 private:
  // Returns the number of slots for the next batch.
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
    record_given(some);
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

  SlotTarget target_;
  ImageWriter image_;
  SlotReference reference_;
};

constexpr uint64_t kFewRows = 32;  // a slot with at most this many changed rows needs no second image
// number of slots per own_all frame; large, so that a request finds closed slots only once
constexpr size_t kTogether = 32;

// Hands over slots while clients use them. A separate thread sends whole images over one connection. Later changes and
// the transfer of ownership go over another connection, so that a closed slot never waits behind images. Slots are
// closed in batches, so that each step of a worker is delayed at most once.
class Mover : public Attempt {
 public:
  Mover(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : Attempt(state, to, outcome), images_(state, to), control_(state, to) {
    outcome_.local = images_.local() && control_.local();
  }

  // If this function throws PeerLost, which it may do at any point, `outcome` has the slots whose result is known.
  void move(const std::vector<uint16_t>& slots) {
    if (!declare(control_, slots)) return;
    SlotStream stream(state_, images_, slots);
    size_t images = slots.size();  // images without a reply yet
    try {
      while (images != 0 || !ready_.empty() || !pending_.empty()) {
        if (pending_.empty() && !ready_.empty() && (ready_.size() >= kTogether || images == 0)) {
          bring_up_to_date();
          continue;
        }
        const Ready ready = wait(images != 0 && ready_.size() < kTogether, stream);
        if (ready.word) receive_control();
        if (ready.image) {
          receive_image(stream);
          --images;
        }
      }
    } catch (const PeerLost&) {
      stream.rethrow();  // if the stream failed first, its error is the cause of this one
      throw;
    }
  }

 private:
  struct Ready {
    bool image = false, word = false;
  };
  // A slot image that the target has imported.
  struct SentImage {
    uint16_t slot;
    uint64_t cut;  // the image lacks changes after this cut
  };
  // Request over `control_` without an answer: take (changes since the image) or own_all (the rest of `batch_`).
  struct Request {
    uint16_t slot;
    Kind kind;
    Clock::time_point at;
  };

  // A large image may take long, as long as bytes are still being sent. SlotStream counts the images that it sends.
  Ready wait(bool for_images, SlotStream& stream) {
    pollfd fds[2] = {{pending_.empty() ? -1 : control_.fd(), POLLIN, 0}, {for_images ? images_.fd() : -1, POLLIN, 0}};
    const uint64_t sent = stream.sends();
    const int found = poll(fds, 2, static_cast<int>(to_.timeout_s * 1000) + 1);
    if (found < 0 && errno != EINTR) throw PeerLost(std::strerror(errno));
    const bool sending = sent % 2 == 1 || stream.sends() != sent;
    if (found == 0 && (!pending_.empty() || !sending)) throw PeerLost(describe(Io::idle));
    return {fds[1].revents != 0, fds[0].revents != 0};
  }

  void receive_image(SlotStream& stream) {
    FrameHeader answer;
    const std::string why = images_.receive(answer);
    const SlotStream::Sent sent = stream.arrived();
    outcome_.bytes += sent.bytes;
    if (!why.empty()) {
      keep(sent.slot, why);
    } else if (answer.step != 0) {
      gone(sent.slot);
    } else {
      ready_.push_back({sent.slot, sent.cut});
    }
  }

  // Sends the changes of slots that have changed much since their image, so that little is left to send when the slots
  // are closed.
  void bring_up_to_date() {
    batch_.swap(ready_);
    const uint64_t cut = state_.store.cut();
    for (SentImage& one : batch_) {
      if (state_.store.dirty_rows(one.slot, one.cut) <= kFewRows) continue;
      state_.store.export_slot(one.slot, one.cut, image_);
      one.cut = cut;
      outcome_.bytes += image_.bytes().size();
      pending_.push_back({one.slot, Kind::take, Clock::now()});
      control_.send(Kind::take, one.slot, image_.bytes(), state_.transfer_ids.at(one.slot));
    }
    if (pending_.empty()) close();
  }

  void receive_control() {
    FrameHeader answer;
    const std::string why = control_.receive(answer, answered_);
    const Request said = pending_.front();
    pending_.pop_front();
    if (said.kind == Kind::own_all) {
      outcome_.longest_freeze_s = std::max(outcome_.longest_freeze_s, since(said.at));
      settle(closing_, why.empty() ? decode_answer(answered_) : BatchAnswer{{}, why});
      return batch_.clear();
    }
    if (!why.empty() || answer.step != 0) {
      std::erase_if(batch_, [&](const SentImage& one) { return one.slot == said.slot; });
      if (!why.empty()) {
        keep(said.slot, why);
      } else {
        gone(said.slot);
      }
    }
    if (pending_.empty()) close();
  }

  // Closes the slots of the batch. No client can use these slots until the reply.
  void close() {
    if (batch_.empty()) return;
    const Clock::time_point at = Clock::now();
    BatchWriter batch(false);
    closing_.clear();
    for (const SentImage& one : batch_) {
      closed.insert(one.slot);
      state_.store.close_and_export(one.slot, one.cut, image_);
      closing_.push_back(one.slot);
      batch.begin(one.slot, state_.transfer_ids.at(one.slot));
      batch.add(image_.bytes());
      batch.end();
    }
    record_given(closing_);
    outcome_.bytes += batch.bytes().size();
    pending_.push_back({0, Kind::own_all, at});
    control_.send(Kind::own_all, 0, batch.bytes());
  }

  // The target already has the slot, because the reply to an earlier attempt was lost.
  void gone(uint16_t slot) {
    state_.store.close_slot(slot);
    record_given({&slot, 1});
    state_.store.clear_slot(slot);
    outcome_.moved.push_back(slot);
  }

  SlotTarget images_, control_;
  std::vector<uint16_t> closing_;         // slots of `batch_`
  std::vector<SentImage> ready_, batch_;  // slots of the next batch, slots of the current batch
  std::deque<Request> pending_;
  ImageWriter image_;
  std::vector<uint8_t> answered_;
};

// Returns the slots that are open here, or that were closed for this target in an earlier attempt without a reply (same
// transfer id).
std::vector<uint16_t> movable_slots(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots,
                                    HandoverOutcome& outcome) {
  std::vector<uint16_t> ours;
  const std::map<uint16_t, uint16_t> slots_in_doubt = state.slots_in_doubt();
  for (const uint16_t slot : slots) {
    const auto asked = slots_in_doubt.find(slot);
    const bool open = state.store.is_open(slot),
               ask_again = asked != slots_in_doubt.end() && asked->second == to.server;
    if (open) state.transfer_ids[slot] = TransferLog::new_id();
    if (ask_again || open) {
      ours.push_back(slot);
    } else {
      outcome.why = "was not given slot " + std::to_string(slot) + ": this server does not own it";
    }
  }
  return ours;
}

// The caller holds `state.handover_mutex`. After the call, slots without a reply are in doubt.
template <class Mover, class Move>
void attempt(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome, Move move) {
  try {
    Mover mover(state, to, outcome);
    try {
      move(mover);
    } catch (const std::exception& e) {
      for (const uint16_t slot : mover.closed) state.mark_in_doubt(slot, to.server);
      outcome.why = e.what();
    }
  } catch (const PeerLost& e) {
    outcome.why = e.what();
  }
}

}  // namespace

HandoverOutcome hand_over(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots) {
  HandoverOutcome outcome;
  const Clock::time_point start = Clock::now();
  if (to.server == state.options.index) throw BadInput("a server cannot hand slots to itself");
  if (state.ownership()->mine.empty()) throw BadInput("this server has no placement yet, hence no slots to hand over");
  if (state.steps.half_applied())
    throw BadInput("this server has applied only a part of a step, so it cannot hand over its slots");
  const std::lock_guard one(state.handover_mutex);
  const std::vector<uint16_t> ours = movable_slots(state, to, slots, outcome);
  if (to.hurry) {
    RequestPause::Scope pause(state.request_pause);
    attempt<ThrottledMover>(state, to, outcome, [&](ThrottledMover& mover) { mover.give(ours, pause); });
  } else {
    attempt<Mover>(state, to, outcome, [&](Mover& mover) { mover.move(ours); });
  }
  for (const uint16_t slot : outcome.moved) state.clear_in_doubt(slot);
  for (const uint16_t slot : outcome.kept) state.clear_in_doubt(slot);
  for (const auto& [slot, server] : state.slots_in_doubt()) outcome.in_doubt.push_back(slot);
  if (!outcome.why.empty()) outcome.why = "server " + std::to_string(to.server) + " " + outcome.why;
  outcome.seconds = since(start);
  return outcome;
}

}  // namespace springtide
