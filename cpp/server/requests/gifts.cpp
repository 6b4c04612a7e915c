#include "server/requests/gifts.h"

#include <algorithm>
#include <random>

namespace springtide {
namespace {

// Of one slot. A source asks again until it hears of the newest placement, a heartbeat or two: no slot comes
// here so often meanwhile.
constexpr size_t kRemembered = 64;

}  // namespace

uint64_t Gifts::new_name() {
  std::random_device random;
  uint64_t name = 0;
  while (name == 0) name = static_cast<uint64_t>(random()) << 32 | random();
  return name;
}

std::unique_lock<std::mutex> Gifts::hold(uint32_t slot) {
  return std::unique_lock(stripes_[slot % stripes_.size()]);
}

Gifts::Fate Gifts::fate(uint32_t slot, uint64_t name) const {
  const std::lock_guard lock(mutex_);
  const auto found = settled_.find(slot);
  if (name == 0 || found == settled_.end()) return Fate::unknown;
  const auto& all = found->second;
  const auto one = std::find_if(all.begin(), all.end(), [&](const Settled& had) { return had.name == name; });
  return one == all.end() ? Fate::unknown : one->fate;
}

void Gifts::settle(uint32_t slot, uint64_t name, Fate fate) {
  if (name == 0 || this->fate(slot, name) != Fate::unknown) return;
  const std::lock_guard lock(mutex_);
  auto& all = settled_[slot];
  all.push_back({name, fate});
  if (all.size() > kRemembered) all.pop_front();
}

}  // namespace springtide
