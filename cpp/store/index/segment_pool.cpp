#include "store/index/segment_pool.h"

#include <algorithm>
#include <cstring>

#include "base/types.h"

namespace springtide {

SegmentPool::SegmentPool(size_t reserve_bytes)
    : arena_("index", std::min(reserve_bytes, size_t{1} << 40)),
      tags_arena_("index tags", arena_.capacity() / kUnit),
      tags_(tags_arena_.base()) {
  // Unit 0 is the empty segment that every slot starts with: it is read and never written.
  arena_.take(kUnit, kUnit);
}

uint32_t SegmentPool::take(uint32_t size_class) {
  if (size_class >= kClasses) throw BadInput("one slot holds too many keys; use more slots");
  uint32_t unit = 0;
  {
    std::lock_guard hold(lock_);
    uint32_t from = size_class;
    while (from < kClasses && free_[from] == 0) ++from;
    if (from < kClasses) {
      unit = free_[from];
      remove_free(unit, from);
    } else {
      from = std::max(size_class, kChunkClass);
      size_t bytes = kUnit << from;
      unit = static_cast<uint32_t>(arena_.take(bytes, bytes) / kUnit);
    }
    while (from > size_class) {
      --from;
      push_free(unit + (uint32_t{1} << from), from);
    }
  }
  std::memset(at(unit), 0, kUnit << size_class);
  return unit;
}

void SegmentPool::give_back(uint32_t unit, uint32_t size_class) {
  std::lock_guard hold(lock_);
  while (size_class < kChunkClass) {
    uint32_t buddy = unit ^ (uint32_t{1} << size_class);
    if (tags_[buddy] != size_class + 1) break;
    remove_free(buddy, size_class);
    unit = std::min(unit, buddy);
    ++size_class;
  }
  push_free(unit, size_class);
}

void SegmentPool::push_free(uint32_t unit, uint32_t size_class) {
  links(unit) = {free_[size_class], 0};
  if (free_[size_class] != 0) links(free_[size_class]).prev = unit;
  free_[size_class] = unit;
  tags_[unit] = static_cast<uint8_t>(size_class + 1);
}

void SegmentPool::remove_free(uint32_t unit, uint32_t size_class) {
  FreeBlock block = links(unit);
  if (block.prev != 0) {
    links(block.prev).next = block.next;
  } else {
    free_[size_class] = block.next;
  }
  if (block.next != 0) links(block.next).prev = block.prev;
  tags_[unit] = 0;
}

size_t SegmentPool::resident() const { return arena_.resident() + arena_.resident() / kUnit; }

}  // namespace springtide
