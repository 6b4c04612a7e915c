#include "server/requests/server_state.h"

#include <algorithm>
#include <random>

#include "wire/wire.h"

namespace springtide {

void ServerState::change_ownership(const std::function<void(SlotOwnership&)>& how) {
  const std::lock_guard lock(mutex);
  auto changed = std::make_shared<SlotOwnership>(*owned);
  how(*changed);
  changed->all = std::all_of(changed->mine.begin(), changed->mine.end(), [](uint8_t mine) { return mine != 0; });
  owned = std::move(changed);
}

void ServerState::record_given(std::span<const uint16_t> slots, uint16_t to, const std::string& address) {
  change_ownership([&](SlotOwnership& now) {
    for (const uint16_t slot : slots) {
      now.mine[slot] = 0;
      now.owner[slot] = to;
    }
    now.addresses[to] = address;
  });
}

void ServerState::record_received(std::span<const uint16_t> slots) {
  if (slots.empty()) return;
  change_ownership([&](SlotOwnership& now) {
    for (const uint16_t slot : slots) {
      now.mine[slot] = 1;
      now.since[slot] = now.newest = kNamedOnly;
      now.owner[slot] = static_cast<uint16_t>(options.index);
    }
  });
}

void ServerState::mark_in_doubt(uint16_t slot, uint16_t server) {
  const std::lock_guard lock(mutex);
  in_doubt[slot] = server;
}

bool ServerState::clear_in_doubt(uint16_t slot) {
  const std::lock_guard lock(mutex);
  return in_doubt.erase(slot) != 0;
}

std::map<uint16_t, uint16_t> ServerState::slots_in_doubt() const {
  const std::lock_guard lock(mutex);
  return in_doubt;
}

void ServerState::mark_owner_unknown(uint32_t slot) {
  if (ownership()->owner[slot] == kNoOwner) return;
  change_ownership([&](SlotOwnership& now) { now.owner[slot] = kNoOwner; });
}

ServerStats ServerState::stats() const {
  ServerStats s;
#define SPRINGTIDE_READ(name) s.name = count.name;
  SPRINGTIDE_SERVER_COUNTS(SPRINGTIDE_READ)
#undef SPRINGTIDE_READ
  s.applied_step = steps.applied();
  s.staleness_p50 = staleness.median(), s.staleness_max = staleness.most();
  return s;
}
}  // namespace springtide
