#include "store/keys/staleness.h"

#include <algorithm>

namespace springtide {

void Staleness::push_applied(uint64_t seen) {
  const uint64_t before = applied_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t lag = before - std::min(before, seen);
  pushes_[std::min<uint64_t>(lag, kCounted)].fetch_add(1, std::memory_order_relaxed);
  uint64_t most = most_.load(std::memory_order_relaxed);
  while (most < lag && !most_.compare_exchange_weak(most, lag, std::memory_order_relaxed)) {
  }
}

uint64_t Staleness::median() const {
  uint64_t all = 0;
  for (const auto& count : pushes_) all += count.load(std::memory_order_relaxed);
  uint64_t below = 0;
  for (size_t lag = 0; lag <= kCounted; ++lag) {
    below += pushes_[lag].load(std::memory_order_relaxed);
    if (2 * below >= all) return lag;
  }
  return kCounted;
}

}  // namespace springtide
