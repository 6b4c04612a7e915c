// Copying a slot out at once: its cells are picked and counted, then each row goes straight to its place in
// the image, all under the stripe's lock, which is held for little more than one copy of the bytes; new
// memory for them is had outside of it. Part by part: store_copy.cpp.
#include <string>

#include "slots/slot_reference.h"
#include "store/slot_export.h"
#include "store/store_impl.h"

namespace springtide {

uint64_t StoreImpl::write_image(uint32_t number, uint64_t since_cut, ImageWriter& to, bool close, uint64_t most_bytes) {
  check_slot(number);
  SlotExport& slot = SlotExport::of_this_thread();
  for (bool written = false; !written;) {
    size_t bytes = 0;
    {
      std::lock_guard hold(stripe_of_slot(number).lock);
      if (close) mark_closed(number, true);
      if (since_cut == 0 && index_.slot(number).row_bytes > most_bytes) return index_.slot(number).row_bytes;
      slot.pick(*this, number, since_cut);
      const SlotImage about{number, options.slots, options.seed, clock.now(), slot.full, {}, identities_of(number)};
      bytes = slot.bytes(about);
      if (bytes > most_bytes) return bytes;
      written = to.has_room(bytes);
      if (written) slot.write(*this, about, to);
    }
    if (!written) to.reserve_more(bytes);  // and pick again: rows may have come
  }
  return 0;
}

void StoreImpl::refer(uint32_t number, SlotReference& to) {
  check_slot(number);
  SlotExport& slot = SlotExport::of_this_thread();
  std::lock_guard hold(stripe_of_slot(number).lock);
  if (closed_[number] == 0) throw BadInput("slot " + std::to_string(number) + " is open: its rows may change");
  slot.pick(*this, number, 0);
  to.about = {number, options.slots, options.seed, clock.now(), true, {}, identities_of(number)};
  slot.refer(*this, to);
}

uint64_t StoreImpl::dirty_rows(uint32_t number, uint64_t since_cut) {
  check_slot(number);
  SlotExport& slot = SlotExport::of_this_thread();
  std::lock_guard hold(stripe_of_slot(number).lock);
  slot.pick(*this, number, since_cut);
  return slot.entries();
}

}  // namespace springtide
