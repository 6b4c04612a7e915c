#include "handover.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>

#include "frame_io.h"
#include "hurried.h"
#include "slot_image.h"
#include "slot_stream.h"
#include "slot_target.h"
#include "wire_tables.h"

namespace springtide {
namespace {

constexpr uint64_t kFewRows = 256;   // changed since the image: they can come with the last remainder
constexpr size_t kClosedAtOnce = 4;  // remainders under way: each is a slot that nobody can use

double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Whole images go over one connection, by a thread of their own; what changed meanwhile and the slots'
// changing hands over another, so that a closed slot never waits behind images of others.
class Mover {
 public:
  Mover(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : state_(state), to_(to), images_(state, to), words_(state, to), outcome_(outcome) {
    outcome_.local = images_.local() && words_.local();
  }

  // Throws PeerLost in the middle; `outcome` then says what is certain.
  void move(const std::vector<uint16_t>& slots) {
    FrameHeader answer;
    words_.send(Kind::declare, 0, encode_tables(state_.store.tables()));
    if (const std::string why = words_.receive(answer); !why.empty()) {
      for (const uint16_t slot : slots) keep(slot, why);
      return;
    }
    SlotStream stream(state_, images_, slots);
    size_t images = slots.size();  // whose answers are still to come
    try {
      while (images != 0 || !said_.empty()) {
        const Ready ready = wait(images != 0 && said_.size() < kClosedAtOnce, stream);
        if (ready.word) hear_word();
        if (ready.image) {
          hear_image(stream);
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
  // Said over `words_`, and not answered yet.
  struct Said {
    uint16_t slot;
    Kind kind;     // take: what changed since the image; own: the rest
    uint64_t cut;  // of that
    Clock::time_point at;
  };

  // A large image may take its time as long as the connection takes its bytes (slot_stream.cpp sees to that).
  Ready wait(bool for_images, SlotStream& stream) {
    pollfd fds[2] = {{said_.empty() ? -1 : words_.fd(), POLLIN, 0},
                     {for_images ? images_.fd() : -1, POLLIN, 0}};
    const uint64_t sent = stream.sends();
    const int found = poll(fds, 2, static_cast<int>(to_.timeout_s * 1000) + 1);
    if (found < 0 && errno != EINTR) throw PeerLost(std::strerror(errno));
    const bool sending = sent % 2 == 1 || stream.sends() != sent;
    if (found == 0 && (!said_.empty() || !sending)) throw PeerLost(describe(Io::idle));
    return {fds[1].revents != 0, fds[0].revents != 0};
  }

  // An image is laid in there. A slot that changed much since gets another, so that the rest is small.
  void hear_image(SlotStream& stream) {
    FrameHeader answer;
    const std::string why = images_.receive(answer);
    const SlotStream::Sent sent = stream.arrived();
    outcome_.bytes += sent.bytes;
    if (!why.empty()) {
      keep(sent.slot, why);
    } else if (answer.step != 0) {
      gone(sent.slot);
    } else if (state_.store.dirty_rows(sent.slot, sent.cut) > kFewRows) {
      const uint64_t cut = state_.store.cut();
      state_.store.export_slot(sent.slot, sent.cut, image_);
      say(Kind::take, sent.slot, cut);
    } else {
      close(sent.slot, sent.cut);
    }
  }

  void hear_word() {
    FrameHeader answer;
    const std::string why = words_.receive(answer);
    const Said said = said_.front();
    said_.pop_front();
    if (said.kind == Kind::own) {
      closed.erase(said.slot);
      outcome_.longest_freeze_s = std::max(outcome_.longest_freeze_s, since(said.at));
    }
    if (!why.empty()) {
      keep(said.slot, why);
    } else if (said.kind == Kind::own) {
      state_.store.clear_slot(said.slot);
      outcome_.moved.push_back(said.slot);
    } else if (answer.step != 0) {
      gone(said.slot);
    } else {
      close(said.slot, said.cut);
    }
  }

  void close(uint16_t slot, uint64_t cut) {
    const Clock::time_point at = Clock::now();
    state_.store.close_and_export(slot, cut, image_);
    closed.insert(slot);
    state_.gave(slot, to_.server, to_.host + ":" + std::to_string(to_.port));
    say(Kind::own, slot, cut, at);
  }

  // What is in `image_`.
  void say(Kind kind, uint16_t slot, uint64_t cut, Clock::time_point at = Clock::now()) {
    outcome_.bytes += image_.bytes().size();
    said_.push_back({slot, kind, cut, at});
    words_.send(kind, slot, image_.bytes());
  }

  void keep(uint16_t slot, const std::string& why) {
    if (state_.ownership()->mine[slot] ==
        0) {  // closed by an earlier try: the target has it not, so it is ours
      state_.store.open_slot(slot);
      state_.got(slot);
    }
    outcome_.kept.push_back(slot);
    outcome_.why = why;
  }

  // It has the slot already: an answer of an earlier try was lost.
  void gone(uint16_t slot) {
    state_.store.close_slot(slot);
    state_.gave(slot, to_.server, to_.host + ":" + std::to_string(to_.port));
    state_.store.clear_slot(slot);
    outcome_.moved.push_back(slot);
  }

  ServerState& state_;
  const HandoverOptions& to_;
  SlotTarget images_, words_;
  HandoverOutcome& outcome_;
  std::deque<Said> said_;
  ImageWriter image_;
};

// Slots that are open here, or were closed for this same target without an answer. No other is ours to give.
std::vector<uint16_t> to_give(const ServerState& state, const HandoverOptions& to,
                              std::span<const uint16_t> slots, HandoverOutcome& outcome) {
  std::vector<uint16_t> ours;
  for (const uint16_t slot : slots) {
    const auto doubt = state.in_doubt.find(slot);
    const bool ask_again = doubt != state.in_doubt.end() && doubt->second == to.server;
    if (ask_again || state.store.is_open(slot)) {
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
      for (const uint16_t slot : mover.closed) state.in_doubt[slot] = to.server;
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
  if (to.server == state.options.index) throw BadInput("a server hands no slots to itself");
  if (state.ownership()->mine.empty())
    throw BadInput("this server was not placed yet: it has no slots to give");
  const std::lock_guard one(state.handing);
  const std::vector<uint16_t> ours = to_give(state, to, slots, outcome);
  if (to.hurry) {
    give_all(state, to, ours, outcome);
  } else {
    move_all(state, to, ours, outcome);
  }
  for (const uint16_t slot : outcome.moved) state.in_doubt.erase(slot);
  for (const uint16_t slot : outcome.kept) state.in_doubt.erase(slot);
  for (const auto& [slot, server] : state.in_doubt) outcome.in_doubt.push_back(slot);
  if (!outcome.why.empty()) outcome.why = "server " + std::to_string(to.server) + " " + outcome.why;
  outcome.seconds = since(start);
  return outcome;
}

}  // namespace springtide
