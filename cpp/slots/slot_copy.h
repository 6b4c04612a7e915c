// A copy of one slot. The copy is made in one piece, or in parts with the slot's lock released in between. In one
// piece, a slot of 9 MB would block training for milliseconds. In: calls of Store::copy_slot. Out: the bytes of an
// image.
//
//   mark the time ─► copy part 1 ─► copy part 2 ─► ... ─► copy the rows changed since the mark, and the identities
//
// The identities name the batches that were applied to the slot.
//
// merge() replaces rows of the parts with rows that changed later, without copying rows. The result is the slot as it
// is at the last call.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "slots/slot_image.h"
#include "store/index/slot_index.h"
#include "store/keys/age_clock.h"

namespace springtide {

// An image in several pieces of memory, without its checksum. The image is valid as long as the memory of its parts.
struct ScatteredImage {
  std::vector<std::span<const uint8_t>> pieces;  // all but the identities
  uint64_t bytes = 0;                            // in these pieces
  std::span<const uint8_t> identities;           // the end of the image
  ImageHeads heads;
};

// `later` has rows that replace rows of the parts, and its `gone` lists rows to remove. `end` has the header and the
// tombstones of the merged image. No row is in two parts.
void merge(std::span<const SlotImage> parts, const SlotImage& later, const SlotImage& end, ScatteredImage& to);

// The image has two parts, because slots may share their identities: first everything else, then the identities. The
// object reuses its memory. The image is valid when the copy is complete.
class SlotCopy {
 public:
  uint64_t size() const { return image_.bytes; }  // without identities
  std::span<const uint8_t> identities() const { return image_.identities; }
  bool full() const { return full_; }
  // Each call returns the next bytes of the image, at most `count`. Once only the identities remain, the span is empty.
  // Small pieces are joined into one. The checksum is computed here, while the bytes are in the CPU cache.
  std::span<const uint8_t> next(size_t count);
  uint64_t given() const { return given_; }
  // After all bytes were returned, returns the final first bytes of the image, which contain its size and checksum.
  std::array<uint8_t, kUnsummed> signature() const { return springtide::signature(size() + identities().size(), sum_); }
  uint64_t checksum() const { return sum_.value(); }

 private:
  friend class Store;

  bool goes_on(uint32_t slot, uint64_t since_cut) const {
    return parts_ != 0 && slot == slot_ && since_cut == since_cut_;
  }
  // Starts a copy in parts of about `part_bytes` bytes.
  void begin(uint32_t slot, uint64_t since_cut, uint64_t bytes, size_t part_bytes) {
    slot_ = slot, since_cut_ = since_cut, next_ = 0;
    parts_ = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / std::max<size_t>(part_bytes, 1) + 1, 2, kMostParts));
    if (images_.size() < parts_) images_.resize(parts_);
  }
  Places places() const {  // of the next part
    const uint64_t share = UINT64_MAX / parts_ + 1;
    return {next_ * share, next_ + 1 == parts_ ? UINT64_MAX : (next_ + 1) * share - 1};
  }

  // Call this function when the image is complete, before next(). `end` is the writer that has the identities.
  void complete(const ImageWriter& end) {
    image_.identities = end.identities();
    given_ = piece_ = inside_ = 0;
    sum_ = {};
  }
  void complete_at_once() {
    image_.bytes = whole_.bytes().size() - whole_.identities().size();
    image_.pieces.assign(1, whole_.bytes().first(image_.bytes));
    full_ = whole_.full();
    complete(whole_);
  }

  static constexpr uint64_t kMostParts = 4096;
  static constexpr size_t kAlone = size_t{64} << 10;  // pieces of at least this size are not joined

  uint32_t slot_ = 0;
  uint64_t since_cut_ = 0;
  uint32_t parts_ = 0, next_ = 0;  // 0 parts: no copy in progress
  AgeClock::Mark mark_;            // mark that was made before the first part
  bool full_ = true;
  std::vector<ImageWriter> images_;
  ImageWriter later_, end_, whole_;  // whole_: a copy that was made in one piece
  ScatteredImage image_;
  uint64_t given_ = 0;
  size_t piece_ = 0, inside_ = 0;  // position of next()
  Checksum sum_;
  std::vector<uint8_t> together_;
};

}  // namespace springtide
