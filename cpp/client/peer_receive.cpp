// Which thread reads replies. A receiver thread does, so that replies arrive while the caller computes. A
// caller that sends and waits at once, several times in a row, reads its replies itself and saves a thread
// switch; the receiver then only checks now and then for replies that nobody reads or that are overdue.
#include <cstring>

#include "client/peer.h"
#include "net/frame_io.h"

namespace springtide {
namespace {

constexpr uint64_t kReplyBytes = 1ULL << 34;            // a reply larger than this is not one
constexpr uint32_t kPrompt = 8;                         // prompt waits in a row after which more are expected
constexpr auto kLookUp = std::chrono::milliseconds(5);  // between two looks of the thread that stands by
constexpr auto kQuiet = std::chrono::milliseconds(50);  // without a call it listens for the connection's end

}  // namespace

void Peer::receive_loop() {
  std::unique_lock lock(mutex_);
  while (failed_.empty() && !closing_) {
    if (!broken_.empty()) {
      if (!reopen(lock)) return;
    } else if (prompt_ >= kPrompt && awaiting_.empty()) {
      stand_by(lock);
    } else {
      receive_next(lock);
    }
  }
}

// One reply, and its call is finished. The lock is let go while the socket is read.
void Peer::receive_next(std::unique_lock<std::mutex>& lock) {
  const Line line = link_.line();
  lock.unlock();
  FrameHeader answer;
  const Io io = receive_all(line, &answer, sizeof answer);
  std::string why = io == Io::ok ? header_error(answer, kReplyBytes) : describe(io, line);
  lock.lock();
  if (closing_ || !failed_.empty()) return;
  if (why.empty() && (awaiting_.empty() || awaiting_.front()->header.request != answer.request)) {
    why = "it answered what nobody asked";
  }
  if (!why.empty()) {
    const double lived = std::chrono::duration<double>(Clock::now() - connected_).count();
    why = name() + " went away " + seconds(lived) + " after it was connected (" + why + "); " + advice();
    return io == Io::ok ? fail(why) : broke(why);
  }
  const std::shared_ptr<Call> call = awaiting_.front();
  ++call->busy;
  lock.unlock();
  const bool whole = receive_reply(line, *call, answer, why);
  lock.lock();
  --call->busy;
  if (!failed_.empty()) return moved_.notify_all();
  if (!whole) return broke(name() + " went away in the middle of a reply (" + why + "); " + advice());
  awaiting_.pop_front();
  finish(*call);
}

bool Peer::receive_reply(Line line, Call& call, const FrameHeader& answer, std::string& why) {
  call.answer = answer;
  const bool rows = answer.status == static_cast<uint16_t>(Status::ok) && call.in_bytes != 0;
  Io io = Io::ok;
  if (rows && (answer.flags & kInWindow) != 0) {
    for (const Call::Copy& copy : call.copies) std::memcpy(copy.to, copy.from, copy.bytes);
  } else if (rows) {
    if (answer.body_bytes != call.in_bytes + sizeof call.answer.server_ns || (answer.flags & kTimed) == 0) {
      why = std::to_string(answer.body_bytes) + " bytes for " + std::to_string(call.in_bytes) + " bytes of rows";
      return false;
    }
    std::vector<iovec> in = call.in;
    in.push_back({&call.answer.server_ns, sizeof call.answer.server_ns});
    io = receive_all(line, in);
    call.slots_left = (call.answer.server_ns & kSlotsLeft) != 0;
    call.answer.server_ns &= ~kSlotsLeft;
  } else if (answer.body_bytes != 0) {
    call.reply.resize(answer.body_bytes);
    io = receive_all(line, call.reply.data(), call.reply.size());
  }
  if (io != Io::ok) why = describe(io, line);
  return io == Io::ok;
}

void Peer::receive_eagerly() {
  prompt_ = 0;
  if (standing_by_) to_receive_.notify_all();
}

void Peer::stand_by(std::unique_lock<std::mutex>& lock) {
  standing_by_ = true;
  while (prompt_ >= kPrompt && failed_.empty() && broken_.empty() && !closing_) {
    to_receive_.wait_for(lock, kLookUp);
    const Clock::time_point now = Clock::now();
    if (awaiting_.empty()) {
      if (now - last_reply_ > kQuiet) prompt_ = 0;
    } else if (now > due(*awaiting_.front())) {
      fail_late(*awaiting_.front());
    } else if (!reading_ && now - awaiting_.front()->sent > kLookUp) {
      prompt_ = 0;
    }
  }
  standing_by_ = false;
  moved_.wait(lock, [&] { return !reading_; });  // after a failure the socket is shut, so that it ends
}

void Peer::receive_for(std::unique_lock<std::mutex>& lock, Call& call) {
  if (call.done || call.busy != 0) {
    prompt_ = 0;
    return;
  }
  if (prompt_ < kPrompt) ++prompt_;
  if (!standing_by_ || reading_) return;
  reading_ = true;
  while (!call.done && failed_.empty() && broken_.empty() && !closing_) receive_next(lock);
  reading_ = false;
  if (call.done && !call.error) ++stats_.read_by_caller;
  if (!awaiting_.empty()) receive_eagerly();
  moved_.notify_all();
}

}  // namespace springtide
