#include "migrate/handover.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>

#include "migrate/slot_stream.h"
#include "migrate/slot_target.h"
#include "migrate/throttled_handover.h"
#include "net/frame_io.h"
#include "server/requests/server_state.h"
#include "slots/slot_batch.h"
#include "slots/slot_image.h"
#include "wire/wire_tables.h"

namespace springtide {
namespace {

constexpr uint64_t kFewRows = 32;  // changed since the image: they can come with the last remainder
constexpr size_t kTogether = 32;   // slots that change hands by one frame: requests meet a closed one once

double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Whole images go over one connection, by a thread of their own; later changes and ownership over another, so that a
// closed slot never waits behind images. Slots are closed in batches: a worker's step touches most slots, so closing
// them one by one would delay it again and again.
class Mover {
 public:
  Mover(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : state_(state), to_(to), images_(state, to), control_(state, to), outcome_(outcome) {
    outcome_.local = images_.local() && control_.local();
  }

  // Throws PeerLost in the middle; `outcome` then says what is certain.
  void move(const std::vector<uint16_t>& slots) {
    FrameHeader answer;
    control_.send(Kind::declare, 0, encode_tables(state_.store.tables()));
    if (const std::string why = control_.receive(answer); !why.empty()) {
      for (const uint16_t slot : slots) keep(slot, why);
      return;
    }
    SlotStream stream(state_, images_, slots);
    size_t images = slots.size();  // whose answers are still to come
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
      stream.rethrow();  // when it failed first, the connection was cut because of that
      throw;
    }
  }

  std::set<uint16_t> closed;  // and no answer yet

 private:
  struct Ready {
    bool image = false, word = false;
  };
  // An image of a slot that is there.
  struct SentImage {
    uint16_t slot;
    uint64_t cut;  // what changed later is not in it
  };
  // Request over `control_`, and not answered yet: take, what changed since the image; own_all, the rest of
  // all in `batch_`.
  struct Request {
    uint16_t slot;
    Kind kind;
    Clock::time_point at;
  };

  // A large image may take its time as long as the connection takes its bytes (slot_stream.cpp sees to that).
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

  // Those of the slots that changed much since their image get another, so that the rest of all is small.
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
      return settle(why.empty() ? decode_answer(answered_) : BatchAnswer{{}, why});
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

  // From here to the answer nobody can use them.
  void close() {
    if (batch_.empty()) return;
    const Clock::time_point at = Clock::now();
    BatchWriter batch(false);
    std::vector<uint16_t> slots;
    for (const SentImage& one : batch_) {
      closed.insert(one.slot);
      state_.store.close_and_export(one.slot, one.cut, image_);
      slots.push_back(one.slot);
      batch.begin(one.slot, state_.transfer_ids.at(one.slot));
      batch.add(image_.bytes());
      batch.end();
    }
    state_.record_given(slots, to_.server, to_.host + ":" + std::to_string(to_.port));
    outcome_.bytes += batch.bytes().size();
    pending_.push_back({0, Kind::own_all, at});
    control_.send(Kind::own_all, 0, batch.bytes());
  }

  void settle(const BatchAnswer& answer) {
    for (const uint16_t slot : answer.taken) {
      if (closed.erase(slot) == 0) throw PeerLost("accepted a slot that was not offered");
      state_.store.clear_slot(slot);
      outcome_.moved.push_back(slot);
    }
    for (const SentImage& one : batch_) {
      if (closed.erase(one.slot) != 0) keep(one.slot, answer.why);
    }
    batch_.clear();
  }

  void keep(uint16_t slot, const std::string& why) {
    if (state_.ownership()->mine[slot] == 0) {  // closed by an earlier try: the target has it not, so it is ours
      state_.store.open_slot(slot);
      state_.record_received(slot);
    }
    outcome_.kept.push_back(slot);
    outcome_.why = why;
  }

  // It has the slot already: an answer of an earlier try was lost.
  void gone(uint16_t slot) {
    state_.store.close_slot(slot);
    state_.record_given(slot, to_.server, to_.host + ":" + std::to_string(to_.port));
    state_.store.clear_slot(slot);
    outcome_.moved.push_back(slot);
  }

  ServerState& state_;
  const HandoverOptions& to_;
  SlotTarget images_, control_;
  HandoverOutcome& outcome_;
  std::vector<SentImage> ready_, batch_;  // to change hands with the next batch, with this one
  std::deque<Request> pending_;
  ImageWriter image_;
  std::vector<uint8_t> answered_;
};

// Slots that are open here, or were closed for this target in an earlier attempt without a reply (same transfer id).
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
      outcome.why = "was not given slot " + std::to_string(slot) + ": it is not here";
    }
  }
  return ours;
}

void move_all(ServerState& state, const HandoverOptions& to, const std::vector<uint16_t>& ours,
              HandoverOutcome& outcome) {
  try {
    Mover mover(state, to, outcome);
    try {
      mover.move(ours);
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
    throw BadInput("this server has applied a step in part: its slots cannot be handed over");
  const std::lock_guard one(state.handover_mutex);
  const std::vector<uint16_t> ours = movable_slots(state, to, slots, outcome);
  if (to.hurry) {
    hand_over_throttled(state, to, ours, outcome);
  } else {
    move_all(state, to, ours, outcome);
  }
  for (const uint16_t slot : outcome.moved) state.clear_in_doubt(slot);
  for (const uint16_t slot : outcome.kept) state.clear_in_doubt(slot);
  for (const auto& [slot, server] : state.slots_in_doubt()) outcome.in_doubt.push_back(slot);
  if (!outcome.why.empty()) outcome.why = "server " + std::to_string(to.server) + " " + outcome.why;
  outcome.seconds = since(start);
  return outcome;
}

}  // namespace springtide
