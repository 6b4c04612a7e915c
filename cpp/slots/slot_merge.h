// Merges the parts of a slot copy with later changes into one scattered image, without copying rows. Used by
// store_copy.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slots/slot_image.h"

namespace springtide {

// An image in several places: one after the other these bytes are it, less its sum. Good as long as what it
// was made of is.
struct ScatteredImage {
  std::vector<std::span<const uint8_t>> pieces;
  uint64_t bytes = 0;
  ImageHeads heads;
};

// `later`: what takes the place of rows in the parts, and as gone those that the whole has no more. `end`:
// what the whole says of itself, and the tombstones it carries. No row is in two parts.
void merge(std::span<const SlotImage> parts, const SlotImage& later, const SlotImage& end, ScatteredImage& to);

}  // namespace springtide
