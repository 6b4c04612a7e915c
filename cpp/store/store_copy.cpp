// Copying a slot out part by part, while it is trained on between them (slot_copy.h).
#include "slots/slot_copy.h"
#include "slots/slot_merge.h"
#include "store/slot_export.h"
#include "store/store_impl.h"

namespace springtide {

std::span<const uint8_t> SlotCopy::next(size_t count) {
  if (given_ == 0) count = std::max(count, kUnsummed);
  std::span<const uint8_t> found;
  together_.clear();
  while (piece_ != image_.pieces.size() && together_.size() < count) {
    const auto rest = image_.pieces[piece_].subspan(inside_);
    if (rest.size() >= kAlone && !together_.empty()) break;
    const auto some = rest.first(std::min(rest.size(), count - together_.size()));
    inside_ += some.size();
    if (some.size() == rest.size()) ++piece_, inside_ = 0;
    if (rest.size() >= kAlone) {
      found = some;
      break;
    }
    together_.insert(together_.end(), some.begin(), some.end());
  }
  if (found.empty()) found = together_;
  sum_.add(given_ == 0 ? found.subspan(std::min(kUnsummed, found.size())) : found);
  given_ += found.size();
  return found;
}

bool StoreImpl::copy_slot(uint32_t number, uint64_t since_cut, SlotCopy& to, size_t part_bytes) {
  check_slot(number);
  if (!to.goes_on(number, since_cut)) {
    to.parts_ = 0;
    const uint64_t bytes = write_image(number, since_cut, to.whole_, false, part_bytes);
    if (bytes == 0) {
      to.complete_at_once();
      return true;
    }
    to.begin(number, since_cut, bytes, part_bytes);
  }
  if (to.next_ < to.parts_) {
    copy_part(to);
    return false;
  }
  to.parts_ = 0;  // none is under way any more
  if (!copy_end(to)) {
    write_image(number, since_cut, to.whole_);
    to.complete_at_once();
  }
  return true;
}

void StoreImpl::copy_part(SlotCopy& to) {
  SlotExport& slot = SlotExport::of_this_thread();
  ImageWriter& image = to.images_[to.next_];
  const Places places = to.places();
  for (bool written = false; !written;) {
    size_t bytes = 0;
    {
      std::lock_guard hold(stripe_of_slot(to.slot_).lock);
      slot.pick_part(*this, to.slot_, to.since_cut_, places);
      const SlotImage about{to.slot_, options.slots, options.seed, 0, slot.full, {}, {}};
      bytes = slot.bytes(about);
      written = image.has_room(bytes);
      if (written && to.next_ == 0) {
        to.mark_ = clock.mark();
        to.full_ = slot.full;
      }
      if (written) slot.write(*this, about, image);
    }
    if (!written) image.reserve_more(bytes);
  }
  ++to.next_;
}

// False: the parts cannot be made whole. The slot was cleared or came anew, more went than is remembered, or
// stamps have new numbers.
bool StoreImpl::copy_end(SlotCopy& to) {
  SlotExport& slot = SlotExport::of_this_thread();
  size_t more = 0, tombstones = 0;
  do {
    to.later_.make_room_for(more);
    to.end_.make_room_for(tombstones);
    std::lock_guard hold(stripe_of_slot(to.slot_).lock);
    if (!clock.knows(to.mark_) || to.mark_.boundary < histories_[to.slot_].complete_from) return false;
    SlotImage about{to.slot_, options.slots, options.seed, clock.now(), true, {}, {}};
    slot.pick_later(*this, to.slot_, to.mark_.boundary);
    more = slot.bytes(about);
    if (to.later_.has_room(more)) slot.write(*this, about, to.later_);
    slot.pick_gone(*this, to.slot_, to.since_cut_);
    if (slot.full != to.full_) return false;
    about.full = slot.full;
    about.identities = identities_of(to.slot_);
    tombstones = slot.bytes(about);
    if (to.end_.has_room(tombstones)) slot.write(*this, about, to.end_);
  } while (!to.later_.has_room(more) || !to.end_.has_room(tombstones));
  std::vector<SlotImage> parts;
  for (uint32_t i = 0; i < to.next_; ++i) parts.push_back(view(to.images_[i].bytes()));
  merge(parts, view(to.later_.bytes()), view(to.end_.bytes()), to.image_);
  to.complete();
  return true;
}

}  // namespace springtide
