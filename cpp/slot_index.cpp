#include "slot_index.h"

#include <bit>
#include <cstring>

#include "hash.h"

namespace springtide {

SlotIndex::SlotIndex(uint32_t slots, size_t reserve_bytes, const TableId* extent_table)
    : pool_(reserve_bytes),
      slots_(slots),
      slot_bits_(static_cast<uint32_t>(std::countr_zero(slots))),
      extent_table_(extent_table) {}

Cell* SlotIndex::find_slowly(Slot& slot, uint64_t hash, TableId table) {
  Cell* cells = cells_at(segment_unit(slot, hash));
  for (uint64_t bucket = hash & slot.bucket_mask;; bucket = (bucket + 1) & slot.bucket_mask) {
    Cell* b = cells + bucket * kBucket;
    for (uint32_t i = 0; i < kBucket; ++i) {
      if (b[i].hash == hash && b[i].meta != 0 && belongs(b[i].meta, table)) return b + i;
    }
    if (has_empty(b)) return nullptr;
  }
}

Cell* SlotIndex::insert(Slot& slot, uint64_t hash, uint64_t meta) {
  if (slot.root == 0) {
    slot.root = new_segment(kFirstClass, 0);
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

// A hole is filled by the next cell of the same run of full buckets that may move there, and so on, so that a
// search can always stop at the first bucket with an empty cell.
void SlotIndex::erase(Slot& slot, Cell* cell) {
  uint32_t last = (uint32_t{slot.bucket_mask} + 1) * kBucket - 1;
  Cell* cells = cells_at(segment_unit(slot, cell->hash));
  Header head = header(cells, last);
  --head.count;
  set_header(cells, last, head);
  --slot.cells;
  uint32_t mask = slot.bucket_mask;
  uint32_t hole_bucket = static_cast<uint32_t>(cell - cells) / kBucket;
  bool was_full = !has_empty(cells + hole_bucket * kBucket);
  for (uint32_t step = 1; was_full && step <= mask; ++step) {
    uint32_t bucket = (hole_bucket + step) & mask;
    Cell* b = cells + bucket * kBucket;
    bool full = !has_empty(b);
    for (uint32_t i = 0; i < kBucket; ++i) {
      if (b[i].meta == 0 || b + i == cells + last) continue;
      uint32_t from_home = (bucket - static_cast<uint32_t>(b[i].hash & mask)) & mask;
      if (from_home >= step) {  // its home is at or before the hole
        *cell = b[i];
        cell = b + i;
        hole_bucket = bucket;
        step = 0;
        break;
      }
    }
    was_full = full;
  }
  *cell = Cell{};
}

void SlotIndex::clear(Slot& slot) {
  if (slot.root == 0) return;
  uint32_t last = (uint32_t{slot.bucket_mask} + 1) * kBucket - 1;
  uint32_t segment_class = static_cast<uint32_t>(std::countr_zero(last + 1u)) - 4;
  if (slot.depth == 0) {
    pool_.give_back(slot.root, segment_class);
  } else {
    uint32_t* entries = directory(slot);
    for (uint32_t at = 0; at < (uint32_t{1} << slot.depth);) {
      uint32_t unit = entries[at];
      at += uint32_t{1} << (slot.depth - header(cells_at(unit), last).depth);
      pool_.give_back(unit, segment_class);
    }
    pool_.give_back(slot.root, directory_class(slot.depth));
  }
  slot.root = 0;
  slot.depth = 0;
  slot.bucket_mask = 0;
  slot.cells = slot.rows = slot.row_bytes = 0;
}

// Limits are drawn from 0.65 to 0.9 of the cells, so that equal slots do not all grow in the same moment.
uint32_t SlotIndex::new_segment(uint32_t size_class, uint32_t depth) {
  uint32_t unit = pool_.take(size_class);
  uint32_t cells = 16u << size_class;
  uint64_t draw = mix64((uint64_t{unit} << 8 | depth) + 0x51ed270b153a4d2fULL);
  auto limit = static_cast<uint16_t>(cells * 13 / 20 + draw % (cells / 4));
  set_header(cells_at(unit), cells - 1, Header{0, limit, depth});
  return unit;
}

Cell* SlotIndex::place(Cell* cells, uint32_t bucket_mask, uint64_t hash, uint64_t meta) {
  for (uint64_t bucket = hash & bucket_mask;; bucket = (bucket + 1) & bucket_mask) {
    Cell* b = cells + bucket * kBucket;
    for (uint32_t i = 0; i < kBucket; ++i) {
      if (b[i].meta == 0) {
        b[i] = Cell{hash, meta};
        return b + i;
      }
    }
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
  Cell* from = cells_at(slot.root);
  Cell* to = cells_at(unit);
  uint32_t mask = old_cells * 2 / kBucket - 1;
  for (uint32_t i = 0; i + 1 < old_cells; ++i) {
    if (from[i].meta != 0) place(to, mask, from[i].hash, from[i].meta);
  }
  Header head = header(to, old_cells * 2 - 1);
  head.count = header(from, old_cells - 1).count;
  set_header(to, old_cells * 2 - 1, head);
  pool_.give_back(slot.root, old_class);
  slot.root = unit;
  slot.bucket_mask = static_cast<uint16_t>(mask);
}

void SlotIndex::double_directory(Slot& slot) {
  if (slot.depth + 1u > kMaxDepth) throw BadInput("too many keys of different tables share one hash");
  uint32_t unit = pool_.take(directory_class(slot.depth + 1u));
  auto* entries = reinterpret_cast<uint32_t*>(pool_.at(unit));
  if (slot.depth == 0) {
    entries[0] = entries[1] = slot.root;
  } else {
    const uint32_t* old = directory(slot);
    for (uint32_t i = 0; i < (uint32_t{1} << slot.depth); ++i) entries[2 * i] = entries[2 * i + 1] = old[i];
    pool_.give_back(slot.root, directory_class(slot.depth));
  }
  slot.root = unit;
  ++slot.depth;
}

// Cells whose next hash bit is one move to a new segment; the others close ranks in a fresh copy.
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
