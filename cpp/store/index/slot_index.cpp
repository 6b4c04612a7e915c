#include "store/index/slot_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "base/types.h"

namespace springtide {

SegmentPool::SegmentPool(size_t reserve_bytes)
    : arena_("index", std::min(reserve_bytes, size_t{1} << 40)),
      tags_arena_("index tags", arena_.capacity() / kUnit),
      tags_(tags_arena_.base()) {
  // Unit 0 is the empty segment of every new slot, and is never written.
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

SlotIndex::SlotIndex(uint32_t slots, size_t reserve_bytes, const TableId* extent_table)
    : pool_(reserve_bytes),
      slots_(slots),
      slot_bits_(static_cast<uint32_t>(std::countr_zero(slots))),
      extent_table_(extent_table) {}

// Normally, a key is in its home bucket. If that bucket is full, the key is in the other bucket of the pair; if both
// are full, in the next pair with room. A search may therefore stop at an empty cell of the home bucket or of any later
// bucket on its path.
Cell* SlotIndex::find_slowly(Slot& slot, uint64_t hash, TableId table) {
  Cell* cells = cells_at(segment_unit(slot, hash));
  uint32_t mask = slot.bucket_mask, home = static_cast<uint32_t>(hash) & mask;
  bool room = false;
  for (uint32_t step = 0; step <= mask; ++step) {
    uint32_t bucket = step < 2 ? home ^ step : ((home & ~1u) + step) & mask;
    Cell* b = cells + bucket * kBucket;
    for (uint32_t i = 0; i < kBucket; ++i) {
      if (b[i].hash == hash && b[i].meta != 0 && belongs(b[i].meta, table)) return b + i;
    }
    room |= has_empty(b);
    if (room && (step < 2 || step % 2 == 1)) break;
  }
  return nullptr;
}

Cell* SlotIndex::insert(Slot& slot, uint64_t hash, uint64_t meta) {
  if (slot.bucket_mask == 0) {
    slot.segments[0] = new_segment(kFirstClass, 0);
    slot.bucket_mask = (16u << kFirstClass) / kBucket - 1;
  }
  for (;;) {
    uint32_t last = (uint32_t{slot.bucket_mask} + 1) * kBucket - 1;
    Cell* cells = cells_at(segment_unit(slot, hash));
    Header head = header(cells, last);
    if (head.count < head.limit) {
      ++head.count;
      set_header(cells, last, head);
      ++slot.cells;
      return place(cells, slot.bucket_mask, hash, meta);
    }
    grow(slot, hash);
  }
}

// If cells were placed further away because a bucket was full, they move back, so that searches can stop at empty
// cells.
void SlotIndex::erase(Slot& slot, Cell* cell) {
  uint32_t mask = slot.bucket_mask, last = (mask + 1) * kBucket - 1;
  Cell* cells = cells_at(segment_unit(slot, cell->hash));
  Header head = header(cells, last);
  --head.count;
  set_header(cells, last, head);
  --slot.cells;
  for (;;) {
    auto bucket = static_cast<uint32_t>(cell - cells) / kBucket;
    bool full = !has_empty(cells + bucket * kBucket);
    bool pair_full = full && !has_empty(cells + (bucket ^ 1) * kBucket);
    Cell* filler = full ? first_homed(cells, bucket ^ 1, bucket, mask) : nullptr;
    for (uint32_t step = 2; filler == nullptr && pair_full && step <= mask; step += 2) {
      uint32_t pair = ((bucket & ~1u) + step) & mask;
      filler = first_that_may_move(cells, pair, bucket, mask);
      pair_full = !has_empty(cells + pair * kBucket) && !has_empty(cells + (pair + 1) * kBucket);
    }
    if (filler == nullptr) break;
    *cell = *filler;
    cell = filler;
  }
  *cell = Cell{};
}

Cell* SlotIndex::first_homed(Cell* cells, uint32_t bucket, uint32_t home, uint32_t mask) {
  uint32_t last = (mask + 1) * kBucket - 1;
  for (uint32_t i = bucket * kBucket; i < (bucket + 1) * kBucket; ++i) {
    if (cells[i].meta != 0 && i != last && (cells[i].hash & mask) == home) return cells + i;
  }
  return nullptr;
}

// Returns a cell of this pair whose home is the pair of `to`, or a pair before that one, counted backwards from here.
Cell* SlotIndex::first_that_may_move(Cell* cells, uint32_t pair, uint32_t to, uint32_t mask) {
  uint32_t last = (mask + 1) * kBucket - 1, distance = (pair - (to & ~1u)) & mask;
  for (uint32_t i = pair * kBucket; i < (pair + 2) * kBucket; ++i) {
    if (cells[i].meta == 0 || i == last) continue;
    uint32_t home_pair = static_cast<uint32_t>(cells[i].hash) & mask & ~1u;
    if (((pair - home_pair) & mask) >= distance) return cells + i;
  }
  return nullptr;
}

void SlotIndex::clear(Slot& slot) {
  if (slot.bucket_mask == 0) return;
  uint32_t last = (uint32_t{slot.bucket_mask} + 1) * kBucket - 1;
  uint32_t segment_class = static_cast<uint32_t>(std::countr_zero(last + 1u)) - 4;
  const uint32_t* entries = directory(slot);
  for (uint32_t at = 0; at < (uint32_t{1} << slot.depth);) {
    uint32_t unit = entries[at];
    at += uint32_t{1} << (slot.depth - header(cells_at(unit), last).depth);
    pool_.give_back(unit, segment_class);
  }
  if (slot.depth > Slot::kInlineDepth) pool_.give_back(slot.segments[0], directory_class(slot.depth));
  uint64_t requests = slot.requests;
  slot = Slot{};
  slot.requests = requests;
}

void SlotIndex::reserve(Slot& slot, uint64_t cells) {
  if (slot.bucket_mask != 0 || cells == 0) return;
  const auto holds = [](uint32_t segment_cells) { return uint64_t{segment_cells} * 5 / 8; };
  uint32_t size_class = kFirstClass, depth = 0;
  while (size_class < kFullClass && cells > holds(16u << size_class)) ++size_class;
  while (depth < kMaxReserved && cells > holds(16u << kFullClass) << depth) ++depth;
  uint32_t unit = depth > Slot::kInlineDepth ? pool_.take(directory_class(depth)) : 0;
  auto* entries = unit == 0 ? slot.segments : reinterpret_cast<uint32_t*>(pool_.at(unit));
  for (uint32_t i = 0; i < uint32_t{1} << depth; ++i) entries[i] = new_segment(size_class, depth);
  if (unit != 0) slot.segments[0] = unit;
  slot.depth = static_cast<uint8_t>(depth);
  slot.bucket_mask = static_cast<uint16_t>((16u << size_class) / kBucket - 1);
}

// The number of cells at which a segment splits is random, from 0.5 to 0.9 of all its cells. Slots that are equally
// full therefore split at different times.
uint32_t SlotIndex::new_segment(uint32_t size_class, uint32_t depth) {
  uint32_t unit = pool_.take(size_class);
  uint32_t cells = 16u << size_class;
  uint64_t draw = mix64((uint64_t{unit} << 8 | depth) + 0x51ed270b153a4d2fULL);
  const double least = 0.5, most = 0.9;
  double part = static_cast<double>(draw >> 11) * 0x1p-53;
  auto limit = static_cast<uint16_t>(cells * most * std::pow(least / most, part));
  set_header(cells_at(unit), cells - 1, Header{0, limit, depth});
  return unit;
}

Cell* SlotIndex::put(Cell* bucket, uint64_t hash, uint64_t meta) {
  for (uint32_t i = 0; i < kBucket; ++i) {
    if (bucket[i].meta == 0) {
      bucket[i] = Cell{hash, meta};
      return bucket + i;
    }
  }
  return nullptr;
}

Cell* SlotIndex::place(Cell* cells, uint32_t mask, uint64_t hash, uint64_t meta) {
  uint32_t home = static_cast<uint32_t>(hash) & mask;
  for (uint32_t step = 0;; ++step) {
    uint32_t bucket = step < 2 ? home ^ step : ((home & ~1u) + step) & mask;
    if (Cell* cell = put(cells + bucket * kBucket, hash, meta)) return cell;
  }
}

void SlotIndex::grow(Slot& slot, uint64_t hash) {
  uint32_t cells = (uint32_t{slot.bucket_mask} + 1) * kBucket;
  if (cells < (16u << kFullClass)) {
    double_segment(slot);
  } else {
    split(slot, hash);
  }
}

void SlotIndex::double_segment(Slot& slot) {
  uint32_t old_cells = (uint32_t{slot.bucket_mask} + 1) * kBucket;
  uint32_t old_class = static_cast<uint32_t>(std::countr_zero(old_cells)) - 4;
  uint32_t unit = new_segment(old_class + 1, 0);
  Cell* from = cells_at(slot.segments[0]);
  Cell* to = cells_at(unit);
  uint32_t mask = old_cells * 2 / kBucket - 1;
  for (uint32_t i = 0; i + 1 < old_cells; ++i) {
    if (from[i].meta != 0) place(to, mask, from[i].hash, from[i].meta);
  }
  Header head = header(to, old_cells * 2 - 1);
  head.count = header(from, old_cells - 1).count;
  set_header(to, old_cells * 2 - 1, head);
  pool_.give_back(slot.segments[0], old_class);
  slot.segments[0] = unit;
  slot.bucket_mask = static_cast<uint16_t>(mask);
}

void SlotIndex::double_directory(Slot& slot) {
  if (slot.depth + 1u > kMaxDepth) throw BadInput("too many keys of different tables share one hash");
  uint32_t old[1u << Slot::kInlineDepth];
  uint32_t unit = 0, count = uint32_t{1} << slot.depth;
  const uint32_t* from = directory(slot);
  if (from == slot.segments) from = std::copy_n(from, count, old) - count;
  if (slot.depth >= Slot::kInlineDepth) unit = pool_.take(directory_class(slot.depth + 1u));
  auto* entries = unit == 0 ? slot.segments : reinterpret_cast<uint32_t*>(pool_.at(unit));
  for (uint32_t i = 0; i < count; ++i) entries[2 * i] = entries[2 * i + 1] = from[i];
  if (slot.depth > Slot::kInlineDepth) pool_.give_back(slot.segments[0], directory_class(slot.depth));
  if (unit != 0) slot.segments[0] = unit;
  ++slot.depth;
}

// Splits a segment by the next bit of the hash: cells with a one move to a new segment, and the rest to a fresh copy of
// the old one.
void SlotIndex::split(Slot& slot, uint64_t hash) {
  uint32_t last = (16u << kFullClass) - 1;
  uint32_t unit = segment_unit(slot, hash);
  uint32_t depth = header(cells_at(unit), last).depth;
  if (depth == slot.depth) double_directory(slot);
  uint32_t halves[2] = {new_segment(kFullClass, depth + 1), new_segment(kFullClass, depth + 1)};
  uint16_t counts[2] = {0, 0};
  Cell* from = cells_at(unit);
  for (uint32_t i = 0; i < last; ++i) {
    if (from[i].meta == 0) continue;
    uint64_t half = (from[i].hash << slot_bits_ << depth) >> 63;
    place(cells_at(halves[half]), slot.bucket_mask, from[i].hash, from[i].meta);
    ++counts[half];
  }
  for (int half = 0; half < 2; ++half) {
    Header head = header(cells_at(halves[half]), last);
    head.count = counts[half];
    set_header(cells_at(halves[half]), last, head);
  }
  uint32_t span = uint32_t{1} << (slot.depth - depth);
  uint32_t first = entry_of(slot, hash) & ~(span - 1);
  uint32_t* entries = directory(slot);
  for (uint32_t i = 0; i < span; ++i) entries[first + i] = halves[i >= span / 2];
  pool_.give_back(unit, kFullClass);
}

}  // namespace springtide
