#include "server/requests/transfer_log.h"

#include <algorithm>
#include <random>

namespace springtide {
namespace {

// A source repeats an offer for a heartbeat or two, until it hears of the newest placement. A slot does not
// arrive here this often in that time.
constexpr size_t kEntriesPerSlot = 64;

}  // namespace

uint64_t TransferLog::new_id() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = static_cast<uint64_t>(random()) << 32 | random();
  return id;
}

std::unique_lock<std::mutex> TransferLog::lock(uint32_t slot) {
  return std::unique_lock(stripes_[slot % stripes_.size()]);
}

TransferLog::Outcome TransferLog::outcome(uint32_t slot, uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(slot);
  if (id == 0 || found == entries_.end()) return Outcome::unknown;
  const auto& all = found->second;
  const auto entry = std::find_if(all.begin(), all.end(), [&](const Entry& e) { return e.id == id; });
  return entry == all.end() ? Outcome::unknown : entry->outcome;
}

void TransferLog::record(uint32_t slot, uint64_t id, Outcome outcome) {
  if (id == 0 || this->outcome(slot, id) != Outcome::unknown) return;
  const std::lock_guard lock(mutex_);
  auto& all = entries_[slot];
  all.push_back({id, outcome});
  if (all.size() > kEntriesPerSlot) all.pop_front();
}

}  // namespace springtide
