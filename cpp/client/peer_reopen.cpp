// Reopens a broken connection on the receiver thread. Waiting callers keep waiting, new calls queue up, and unanswered
// calls are sent again in order. Servers recognize duplicates by the batches of a push, or by its step and rank.
#include <algorithm>

#include "client/peer.h"

namespace springtide {
constexpr double kSliceS = 0.1;  // seconds between checks whether this client ends or the server has a new address

void Peer::broke(const std::string& why) {
  if (!failed_.empty() || !broken_.empty()) return;
  // With shared memory, this waits only for a restart, because the old server, if it is alive, might still write to the
  // window.
  const double patience_s = shared_ ? options_.recovery_s : std::max(options_.reconnect_s, options_.recovery_s);
  if (closing_ || patience_s <= 0 || !patient_) return fail(why);
  broken_ = why;
  reopen_until_ = Clock::now() + seconds_of(patience_s);
  shut_both(link_.get());  // this ends the sends and receives of other threads
  queue_.clear();
  moved_.notify_all();
  to_receive_.notify_all();
}

void Peer::move_to(uint32_t life, const std::string& host, uint16_t port) {
  const std::lock_guard lock(mutex_);
  if (life <= life_) return;
  life_ = life;
  const std::string before = name();
  {
    const std::lock_guard where(where_mutex_);
    same_place_ = broken_.empty() && host == host_ && port == port_;
  }
  if (same_place_) return;  // this peer reached the restarted server before move_to() was called
  moved_here_ = true;
  {
    const std::lock_guard where(where_mutex_);
    host_ = host, port_ = port;
  }
  broke(before + " was lost, and its next life is at " + host + ":" + std::to_string(port));
}

bool Peer::wait_for_next_life(bool wait) {
  const std::lock_guard lock(mutex_);
  patient_ = wait;
  return failed_.empty();
}

void Peer::drop_unrepeatable() {
  for (const auto& call : awaiting_) {
    if (may_repeat(*call)) continue;
    call->error = std::make_exception_ptr(
        PeerLost(broken_, "; the push named no batches, so it was not sent again: it may be applied or not"));
    call->done = true;
    bytes_under_way_ -= call->out_bytes;
  }
  std::erase_if(awaiting_, [](const auto& call) { return call->done; });
  moved_.notify_all();
}

// Decides whether a server that answers is the right one.
Peer::Found Peer::judge(const Welcome& terms) const {
  if (terms.instance != terms_.instance) return moved_here_ || same_place_ ? Found::good : Found::other;
  return shared_ || moved_here_ ? Found::stale : Found::good;
}

bool Peer::reopen(std::unique_lock<std::mutex>& lock) {
  if (!failed_.empty()) return false;
  drop_unrepeatable();
  moved_.wait(lock, [&] { return !sending_ || closing_; });
  std::string last = "no answer";
  while (failed_.empty() && Clock::now() < reopen_until_) {
    const auto soon = std::min(reopen_until_, Clock::now() + seconds_of(kSliceS));
    Link fresh;
    Welcome terms;
    lock.unlock();
    try {
      fresh = connect_until(soon, terms, last);
      if (fresh) check_terms(terms);
    } catch (const PeerLost& e) {
      fresh = Link();
      last = e.what();
    } catch (const BadInput& e) {  // for example, DNS fails, or certificates are being renewed
      fresh = Link();
      last = e.what();
    }
    lock.lock();
    if (!fresh || !failed_.empty()) continue;
    const Found found = judge(terms);
    if (found == Found::other && options_.recovery_s <= 0) {
      fail(broken_ + "; another server is at its address now, so its rows are lost");
    } else if (found == Found::good) {
      if (shared_) {
        lock.unlock();
        Fd local = connect_window(terms, *shared_);
        lock.lock();
        if (!local) {
          fail(broken_ + "; the restarted server cannot be reached through shared memory; it may be on another host");
        }
        fresh = std::move(local);
      }
      if (failed_.empty()) {
        take_over(std::move(fresh), terms);
        return true;
      }
    } else {
      last = found == Found::other ? "another server is at its address, and the master has not announced a restart"
                                   : "the connection broke, but the server still runs";
      moved_.wait_until(lock, soon, [&] { return closing_; });
    }
  }
  if (failed_.empty()) {
    const double patience_s = shared_ ? options_.recovery_s : std::max(options_.reconnect_s, options_.recovery_s);
    fail(broken_ + "; it could not be reached again for " + seconds(patience_s) + " (" + last + ")");
  }
  return false;
}

void Peer::take_over(Link fresh, const Welcome& terms) {
  set_timeouts(fresh.line(), 0, options_.request_timeout_s);
  if (!shared_) tune_tcp(fresh.get());
  forget_in_children(link_.get());
  link_ = std::move(fresh);
  close_in_children(link_.get());
  terms_.instance = terms.instance;
  moved_here_ = same_place_ = false;
  send_again();
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
