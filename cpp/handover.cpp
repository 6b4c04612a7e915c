#include "handover.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>

#include "frame_io.h"
#include "handshake.h"
#include "refusal.h"
#include "wire_tables.h"

namespace springtide {
namespace {

constexpr size_t kBatchSlots = 16;          // whose images travel before the first of them is closed
constexpr uint64_t kBatchBytes = 64 << 20;  // of images: a large slot goes with few others
constexpr uint64_t kFewRows = 256;          // changed since the image: they can come with the last remainder
constexpr size_t kClosedAtOnce = 4;         // remainders under way: each is a slot that nobody can use
constexpr uint64_t kReplyBytes = 1 << 16;

double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Requests go out one after the other; replies come back in that order, when asked for.
class Target {
 public:
  Target(const ServerState& state, const HandoverOptions& to) {
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                             std::chrono::duration<double>(to.timeout_s));
    fd_ = connect_tcp(to.host, to.port, deadline);
    if (!fd_) throw PeerLost(std::string("cannot be reached: ") + std::strerror(errno));
    set_timeouts(fd_.get(), to.timeout_s, to.timeout_s);
    tune_tcp(fd_.get());
    FrameHeader who;
    who.rank = state.options.index;
    who.generation = state.generation;
    const Welcome terms = introduce(fd_.get(), state.options.secret, who);
    if (terms.server_index != to.server) {
      throw PeerLost("says it is server " + std::to_string(terms.server_index));
    }
    if (terms.slots != state.store.slots()) throw PeerLost("cuts its tables into another number of slots");
    generation_ = terms.generation;
  }

  void send(Kind kind, uint64_t slot, std::span<const uint8_t> body) {
    FrameHeader header;
    header.kind = static_cast<uint8_t>(kind);
    header.request = ++sent_;
    header.step = slot;
    header.generation = generation_;
    if (send_frame(fd_.get(), header, body) != Io::ok) throw PeerLost("went away");
  }

  // Empty when it is done; else what the target has against it. PeerLost when there is no telling.
  std::string receive(FrameHeader& answer) {
    std::vector<uint8_t> body;
    std::string why;
    if (const Io io = receive_frame(fd_.get(), answer, body, kReplyBytes, why);
        io != Io::ok || !why.empty()) {
      throw PeerLost(why.empty() ? describe(io) : why);
    }
    if (answer.request != ++received_) throw PeerLost("answered what nobody asked");
    return answer.status == static_cast<uint16_t>(Status::ok) ? "" : text_of(body) + " ";
  }

 private:
  Fd fd_;
  uint32_t generation_ = 0;
  uint64_t sent_ = 0, received_ = 0;
};

class Mover {
 public:
  Mover(ServerState& state, const HandoverOptions& to, HandoverOutcome& outcome)
      : state_(state), to_(to), target_(state, to), outcome_(outcome) {}

  // Throws PeerLost in the middle; `outcome` then says what is certain.
  void move(std::vector<uint16_t> batch) {
    FrameHeader answer;
    target_.send(Kind::declare, 0, encode_tables(state_.store.tables()));
    if (const std::string why = target_.receive(answer); !why.empty()) return keep_all(batch, why);
    stream(batch, 0);
    uint64_t cut = last_cut_;
    std::vector<uint16_t> busy;
    for (const uint16_t slot : batch) {
      if (state_.store.dirty_rows(slot, cut) > kFewRows) busy.push_back(slot);
    }
    std::map<uint16_t, uint64_t> cut_of;
    for (const uint16_t slot : batch) cut_of[slot] = cut;
    if (!busy.empty()) {
      const std::vector<uint16_t> all_busy = busy;
      stream(busy, cut);
      for (const uint16_t slot : busy) cut_of[slot] = last_cut_;
      for (const uint16_t slot : all_busy) {
        if (std::find(busy.begin(), busy.end(), slot) == busy.end()) std::erase(batch, slot);
      }
    }
    finish(batch, cut_of);
  }

  std::set<uint16_t> closed;  // and no answer yet

 private:
  void keep_all(std::span<const uint16_t> slots, const std::string& why) {
    for (const uint16_t slot : slots) keep(slot, why);
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

  // Images of all slots, since a cut or whole; those that the target will not have leave the batch.
  void stream(std::vector<uint16_t>& batch, uint64_t since_cut) {
    last_cut_ = state_.store.cut();
    std::deque<uint16_t> waiting;
    std::vector<uint16_t> left;
    uint64_t under_way = 0;
    const auto answer_one = [&] {
      FrameHeader answer;
      const std::string why = target_.receive(answer);
      const uint16_t slot = waiting.front();
      waiting.pop_front();
      if (!why.empty()) {
        keep(slot, why);
      } else if (answer.step != 0) {
        gone(slot);
      } else {
        left.push_back(slot);
      }
    };
    for (const uint16_t slot : batch) {
      const std::vector<uint8_t> image = state_.store.export_slot(slot, since_cut);
      outcome_.bytes += image.size();
      under_way += image.size();
      waiting.push_back(slot);
      target_.send(Kind::take, slot, image);
      if (under_way > kBatchBytes) {
        while (!waiting.empty()) answer_one();
        under_way = 0;
      }
    }
    while (!waiting.empty()) answer_one();
    batch = std::move(left);
  }

  void finish(std::span<const uint16_t> batch, std::map<uint16_t, uint64_t>& cut_of) {
    std::deque<std::pair<uint16_t, Clock::time_point>> waiting;
    std::vector<uint16_t> done;
    const auto answer_one = [&] {
      FrameHeader answer;
      const std::string why = target_.receive(answer);
      const auto [slot, since_close] = waiting.front();
      waiting.pop_front();
      closed.erase(slot);
      outcome_.longest_freeze_s = std::max(outcome_.longest_freeze_s, since(since_close));
      if (why.empty()) {
        done.push_back(slot);
        outcome_.moved.push_back(slot);
      } else {
        keep(slot, why);
      }
    };
    for (const uint16_t slot : batch) {
      if (waiting.size() == kClosedAtOnce) answer_one();
      waiting.emplace_back(slot, Clock::now());
      const std::vector<uint8_t> rest = state_.store.close_and_export(slot, cut_of[slot]);
      closed.insert(slot);
      state_.gave(slot, to_.server, to_.host + ":" + std::to_string(to_.port));
      outcome_.bytes += rest.size();
      target_.send(Kind::own, slot, rest);
    }
    while (!waiting.empty()) answer_one();
    for (const uint16_t slot : done) state_.store.clear_slot(slot);
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
  Target target_;
  HandoverOutcome& outcome_;
  uint64_t last_cut_ = 0;
};

// As many neighbours as fit a batch.
std::vector<uint16_t> next_batch(Store& store, std::span<const uint16_t>& slots) {
  std::vector<uint16_t> batch;
  uint64_t bytes = 0;
  while (!slots.empty() && batch.size() < kBatchSlots && (batch.empty() || bytes < kBatchBytes)) {
    batch.push_back(slots.front());
    bytes += store.load(slots.front()).bytes;
    slots = slots.subspan(1);
  }
  return batch;
}

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

}  // namespace

HandoverOutcome hand_over(ServerState& state, const HandoverOptions& to, std::span<const uint16_t> slots) {
  HandoverOutcome outcome;
  const Clock::time_point start = Clock::now();
  if (to.server == state.options.index) throw BadInput("a server hands no slots to itself");
  if (state.ownership()->mine.empty())
    throw BadInput("this server was not placed yet: it has no slots to give");
  const std::lock_guard one(state.handing);
  const std::vector<uint16_t> ours = to_give(state, to, slots, outcome);
  std::span<const uint16_t> rest = ours;
  try {
    Mover mover(state, to, outcome);
    try {
      while (!rest.empty()) mover.move(next_batch(state.store, rest));
    } catch (const PeerLost& e) {
      for (const uint16_t slot : mover.closed) state.in_doubt[slot] = to.server;
      outcome.why = e.what();
    }
  } catch (const PeerLost& e) {
    outcome.why = e.what();
  }
  for (const uint16_t slot : outcome.moved) state.in_doubt.erase(slot);
  for (const uint16_t slot : outcome.kept) state.in_doubt.erase(slot);
  for (const auto& [slot, server] : state.in_doubt) outcome.in_doubt.push_back(slot);
  if (!outcome.why.empty()) outcome.why = "server " + std::to_string(to.server) + " " + outcome.why;
  outcome.seconds = since(start);
  return outcome;
}

}  // namespace springtide
