// A connection that broke, opened again. The receiving thread does it: those who wait keep waiting, calls
// made meanwhile queue up, and everything without an answer is sent again in its order. Safe because a copy
// of any such call does no harm: servers know a push by its batches, or by its step and rank.
#include <algorithm>

#include "fork_guard.h"
#include "peer.h"

namespace springtide {

void Peer::broke(const std::string& why) {
  if (!failed_.empty() || !broken_.empty()) return;
  // Through shared memory a connection ends with its server, and a server that lives might still write into
  // the window.
  if (shared_ || closing_ || options_.reconnect_s <= 0) return fail(why);
  broken_ = why;
  reopen_until_ = Clock::now() + seconds_of(options_.reconnect_s);
  shut_both(fd_.get());  // whoever sends or receives lets go
  queue_.clear();
  moved_.notify_all();
}

void Peer::drop_unrepeatable() {
  for (const auto& call : awaiting_) {
    if (may_repeat(*call)) continue;
    call->error = std::make_exception_ptr(PeerLost(
        broken_ + "; the push named no batches, so it was not sent again: it may be applied or not"));
    call->done = true;
    bytes_under_way_ -= call->out_bytes;
  }
  std::erase_if(awaiting_, [](const auto& call) { return call->done; });
  moved_.notify_all();
}

bool Peer::reopen(std::unique_lock<std::mutex>& lock) {
  if (!failed_.empty()) return false;
  drop_unrepeatable();
  moved_.wait(lock, [&] { return !sending_ || closing_; });
  std::string last = "no answer";
  Fd fresh;
  Welcome terms;
  while (!fresh && failed_.empty() && Clock::now() < reopen_until_) {
    const auto soon = std::min(reopen_until_, Clock::now() + seconds_of(0.5));  // looks up for a closing
    lock.unlock();
    try {
      fresh = connect_until(soon, terms, last);
    } catch (const PeerLost& e) {
      last = e.what();
    }
    lock.lock();
  }
  if (!failed_.empty()) return false;
  if (!fresh) {
    fail(broken_ + "; it could not be reached again for " + seconds(options_.reconnect_s) + " (" + last +
         ")");
    return false;
  }
  if (terms.instance != terms_.instance) {
    fail(broken_ + "; another server is at its address now: what this one held is lost");
    return false;
  }
  set_timeouts(fresh.get(), 0, options_.request_timeout_s);
  tune_tcp(fresh.get());
  forget_in_children(fd_.get());
  fd_ = std::move(fresh);
  close_in_children(fd_.get());
  send_again();
  return true;
}

void Peer::send_again() {
  broken_.clear();
  connected_ = last_reply_ = Clock::now();
  ++stats_.reconnects;
  for (const auto& call : awaiting_) {
    call->out = call->frame;
    call->reply.clear();
    call->header.request = next_request_++;
    seal(call->header);
    call->sent = Clock::now();
    queue_.push_back(call);
  }
  if (!queue_.empty()) {
    sending_ = handed_over_ = true;
    to_send_.notify_one();
  }
  moved_.notify_all();
}

}  // namespace springtide
