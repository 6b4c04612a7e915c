// What a server says about slots that are not its own. In: placements and hand-overs. Out: snapshots that
// requests read. The truth about a server's own slots are its store's gates: these snapshots follow them.
#include <algorithm>

#include "refusal.h"
#include "server_state.h"

namespace springtide {

void ServerState::change_ownership(const std::function<void(Owned&)>& how) {
  const std::lock_guard lock(mutex);
  auto changed = std::make_shared<Owned>(*owned);
  how(*changed);
  changed->all =
      std::all_of(changed->mine.begin(), changed->mine.end(), [](uint8_t mine) { return mine != 0; });
  owned = std::move(changed);
}

void ServerState::gave(std::span<const uint16_t> slots, uint16_t to, const std::string& address) {
  change_ownership([&](Owned& now) {
    for (const uint16_t slot : slots) {
      now.mine[slot] = 0;
      now.owner[slot] = to;
    }
    now.addresses[to] = address;
  });
}

void ServerState::got(std::span<const uint16_t> slots) {
  if (slots.empty()) return;
  change_ownership([&](Owned& now) {
    for (const uint16_t slot : slots) {
      now.mine[slot] = 1;
      now.since[slot] = now.newest = kByName;
      now.owner[slot] = static_cast<uint16_t>(options.index);
    }
  });
}

void ServerState::doubt(uint16_t slot, uint16_t server) {
  const std::lock_guard lock(mutex);
  in_doubt[slot] = server;
}

bool ServerState::settle_doubt(uint16_t slot) {
  const std::lock_guard lock(mutex);
  return in_doubt.erase(slot) != 0;
}

std::map<uint16_t, uint16_t> ServerState::doubts() const {
  const std::lock_guard lock(mutex);
  return in_doubt;
}

void ServerState::expects(uint32_t slot) {
  if (ownership()->owner[slot] == kNobody) return;
  change_ownership([&](Owned& now) { now.owner[slot] = kNobody; });
}

}  // namespace springtide
