#include "net/pending_handshakes.h"

namespace springtide {

uint64_t PendingHandshakes::begin(int fd) {
  const std::lock_guard lock(mutex_);
  while (pending_.size() >= most_) shut_oldest();
  const auto within = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(within_s_));
  pending_[++last_ticket_] = {fd, Clock::now() + within};
  return last_ticket_;
}

bool PendingHandshakes::end(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  return pending_.erase(ticket) != 0;
}

Clock::time_point PendingHandshakes::shut_overdue() {
  const std::lock_guard lock(mutex_);
  while (!pending_.empty() && pending_.begin()->second.deadline <= Clock::now()) shut_oldest();
  return pending_.empty() ? Clock::time_point::max() : pending_.begin()->second.deadline;
}

void PendingHandshakes::shut_oldest() {
  shut_both(pending_.begin()->second.fd);
  pending_.erase(pending_.begin());
}

}  // namespace springtide
