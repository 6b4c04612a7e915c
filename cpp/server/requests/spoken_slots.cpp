#include "server/requests/spoken_slots.h"

namespace springtide {

std::vector<uint8_t> spoken_slots(const FrameHeader& header, const BodyView& body, const Owned& owned) {
  const bool named = (header.flags & kNamesSlots) != 0;
  if (!named && owned.all && header.epoch >= owned.newest) return {};
  const size_t slots = owned.slots;
  std::vector<uint8_t> spoken(slots, named ? 0 : 1);
  for (const uint16_t slot : body.slots) spoken[slot] = 1;
  if (!named && !owned.mine.empty()) {
    for (size_t slot = 0; slot < slots; ++slot) {
      const bool answers = owned.mine[slot] != 0 && owned.since[slot] <= header.epoch;
      spoken[slot] = static_cast<uint8_t>(spoken[slot] & static_cast<uint8_t>(answers));
    }
  }
  return spoken;
}

}  // namespace springtide
