// hash -> cell, one slot at a time, under its stripe lock. A slot starts as one small segment, doubles it up to 1024
// cells, then splits segment by segment under a directory: growth moves one segment. Design:
// docs/design/slot-tables.md.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/cpu.h"
#include "store/index/arena.h"
#include "store/index/cell.h"

namespace springtide {

// Buddy allocator of index segments: power-of-two blocks of 256 B and up in one arena. Above it: slot_index.h.
class SegmentPool {
 public:
  static constexpr size_t kUnit = 256;

  explicit SegmentPool(size_t reserve_bytes);

  uint32_t take(uint32_t size_class);  // zeroed, kUnit << size_class bytes
  void give_back(uint32_t unit, uint32_t size_class);
  uint8_t* at(uint32_t unit) const { return arena_.base() + unit * kUnit; }
  size_t resident() const;

 private:
  static constexpr uint32_t kClasses = 24;     // up to 2 GiB: a directory of half a billion segments
  static constexpr uint32_t kChunkClass = 12;  // what is taken from the arena at once: 1 MiB

  struct FreeBlock {  // lies in the free block itself
    uint32_t next, prev;
  };
  FreeBlock& links(uint32_t unit) { return *reinterpret_cast<FreeBlock*>(at(unit)); }
  void push_free(uint32_t unit, uint32_t size_class);
  void remove_free(uint32_t unit, uint32_t size_class);

  Arena arena_;
  Arena tags_arena_;
  uint8_t* tags_;  // a unit: size class + 1 where a free block starts, else 0
  std::mutex lock_;
  std::array<uint32_t, kClasses> free_{};  // 0: none; unit 0 is never given out
};

// One cache line, with the directory of all but very large slots in it.
struct alignas(64) Slot {
  static constexpr uint32_t kInlineDepth = 3;

  uint32_t segments[1u << kInlineDepth] = {};  // directory; [0] is its unit when it is too large to lie here
  uint8_t depth = 0;                           // the directory has 2^depth entries
  uint16_t bucket_mask = 0;                    // buckets of a segment, less one; 0: nothing here yet
  uint32_t cells = 0;                          // rows and candidates
  uint32_t rows = 0;
  uint64_t row_bytes = 0;  // weights and state of the rows
  uint64_t requests = 0;
};
static_assert(sizeof(Slot) == 64);

// A part of a slot: cells whose hash, less the bits that say which slot it is, lies between these, both with.
// A cell's place is its own for ever, however the index grows.
struct Places {
  uint64_t first = 0, last = UINT64_MAX;
};

class SlotIndex {
 public:
  SlotIndex(uint32_t slots, size_t reserve_bytes, const TableId* extent_table);

  Slot& slot(uint32_t number) { return slots_[number]; }

  // The line a search starts at; prefetch it some time before find().
  const Cell* home(Slot& slot, uint64_t hash) const {
    return cells_at(segment_unit(slot, hash)) + (hash & slot.bucket_mask) * kBucket;
  }
  // What the home line alone tells: the cell, or that there is none, or that other lines must be asked (`later`).
  Cell* find_home(uint64_t hash, TableId table, const Cell* home, bool& later) const {
    unsigned hits = match(home, hash);
    if (hits != 0) [[likely]] {
      Cell* cell = const_cast<Cell*>(home) + __builtin_ctz(hits);
      if (belongs(cell->meta, table)) [[likely]]
        return cell;
      later = true;
    } else {
      later = !has_empty(home);
    }
    return nullptr;
  }
  // The cell of a row in its home line; nullptr: there is none there, whatever else there may be.
  static const Cell* row_at_home(uint64_t hash, TableId table, const Cell* home, const TableId* extent_table) {
    const unsigned hits = match(home, hash);
    if (hits == 0) [[unlikely]]
      return nullptr;
    const Cell* cell = home + __builtin_ctz(hits);
    return !is_candidate(cell->meta) && extent_table[extent_of(cell->meta)] == table ? cell : nullptr;
  }
  // The next line of its way, after its home line said `later`.
  Cell* find_next(Slot& slot, uint64_t hash, TableId table, const Cell* home) {
    const Cell* next = neighbour(home);
    unsigned hits = match(next, hash);
    if (hits != 0) [[likely]] {
      Cell* cell = const_cast<Cell*>(next) + __builtin_ctz(hits);
      if (belongs(cell->meta, table)) [[likely]]
        return cell;
    }
    return find_slowly(slot, hash, table);
  }
  Cell* find_slowly(Slot& slot, uint64_t hash, TableId table);  // over all lines it may lie in
  Cell* find(Slot& slot, uint64_t hash, TableId table, const Cell* home) {
    bool later = false;
    Cell* cell = find_home(hash, table, home, later);
    return later ? find_slowly(slot, hash, table) : cell;
  }
  Cell* find(Slot& slot, uint64_t hash, TableId table) { return find(slot, hash, table, home(slot, hash)); }

  // The other bucket of its pair, where a full bucket overflows to.
  static const Cell* neighbour(const Cell* bucket) {
    return reinterpret_cast<const Cell*>(reinterpret_cast<uintptr_t>(bucket) ^ (kBucket * sizeof(Cell)));
  }

  Cell* insert(Slot& slot, uint64_t hash, uint64_t meta);  // must not be there yet; moves other cells
  // The line that insert() reads first.
  const Cell* header_line(Slot& slot, uint64_t hash) const {
    return cells_at(segment_unit(slot, hash)) + size_t{slot.bucket_mask} * kBucket;
  }
  void erase(Slot& slot, Cell* cell);  // moves other cells of its segment
  void clear(Slot& slot);
  // An empty slot gets room for so many cells at once; as dense as growing would leave it, so some may still grow.
  void reserve(Slot& slot, uint64_t cells);

  const TableId* extent_table() const { return extent_table_; }
  bool belongs(uint64_t meta, TableId table) const { return table_of(meta) == table; }
  TableId table_of(uint64_t meta) const {
    return is_candidate(meta) ? candidate_table(meta) : extent_table_[extent_of(meta)];
  }

  // Every cell in use, in an order that only the history of the slot decides. Must not insert or erase.
  template <class Visit>
  void for_each(Slot& slot, Visit visit) {
    for (uint32_t at = 0; at < (uint32_t{1} << slot.depth);) at = for_segment(slot, at, visit);
  }
  static size_t segment_cells(const Slot& slot) {
    return slot.bucket_mask == 0 ? 0 : (size_t{slot.bucket_mask} + 1) * kBucket;
  }
  template <class Visit>
  void for_places(Slot& slot, const Places& places, Visit visit) {
    const uint32_t end = entry_at(slot, places.last);
    for (uint32_t at = entry_at(slot, places.first); at <= end;) {
      at = for_segment(slot, at, [&](const Cell& cell) {
        const uint64_t place = cell.hash << slot_bits_;
        if (place >= places.first && place <= places.last) visit(cell);
      });
    }
  }
  // One segment, by the number of any directory entry that leads to it; returns the entry of the next one.
  template <class Visit>
  uint32_t for_segment(Slot& slot, uint32_t entry, Visit visit) {
    Cell* cells = cells_at(directory(slot)[entry]);
    if (slot.bucket_mask != 0) {
      uint32_t last = (uint32_t{slot.bucket_mask} + 1) * kBucket - 1;
      for (uint32_t i = 0; i < last; ++i) {
        if (cells[i].meta != 0) visit(cells[i]);
      }
      if (slot.depth != 0) return (entry | ((uint32_t{1} << (slot.depth - header(cells, last).depth)) - 1)) + 1;
    }
    return entry + 1;
  }

  size_t resident() const { return pool_.resident() + slots_.size() * sizeof(Slot); }

 private:
  static constexpr uint32_t kBucket = 4;      // cells of a cache line
  static constexpr uint32_t kFirstClass = 0;  // 16 cells
  static constexpr uint32_t kFullClass = 6;   // 1024 cells, 16 KiB
  static constexpr uint32_t kMaxDepth = 30;
  static constexpr uint32_t kMaxReserved = 12;  // depth of a directory that is made at once

  // In the last cell of a segment, in the place of its hash. Its meta is one that belongs to no table.
  struct Header {
    uint16_t count;
    uint16_t limit;  // grows when it would hold more
    uint32_t depth;
  };
  static constexpr uint64_t kHeaderMeta = 1;

  // Cells with this hash, as bits. An empty cell may be among them (hash 0): it belongs to no table.
  static unsigned match(const Cell* b, uint64_t hash) {
    return branchless(unsigned{b[0].hash == hash} | unsigned{b[1].hash == hash} << 1 |
                      unsigned{b[2].hash == hash} << 2 | unsigned{b[3].hash == hash} << 3);
  }
  static bool has_empty(const Cell* b) {
    return (b[0].meta == 0) | (b[1].meta == 0) | (b[2].meta == 0) | (b[3].meta == 0);
  }
  Cell* cells_at(uint32_t unit) const { return reinterpret_cast<Cell*>(pool_.at(unit)); }
  uint32_t* directory(Slot& slot) const {
    if (slot.depth <= Slot::kInlineDepth) return slot.segments;
    return reinterpret_cast<uint32_t*>(pool_.at(slot.segments[0]));
  }
  static uint32_t entry_at(const Slot& slot, uint64_t place) {
    return static_cast<uint32_t>(place >> 1 >> (63 - slot.depth));  // depth may be 0
  }
  uint32_t entry_of(const Slot& slot, uint64_t hash) const { return entry_at(slot, hash << slot_bits_); }
  uint32_t segment_unit(Slot& slot, uint64_t hash) const { return directory(slot)[entry_of(slot, hash)]; }
  static Header header(const Cell* cells, uint32_t last) { return std::bit_cast<Header>(cells[last].hash); }
  static void set_header(Cell* cells, uint32_t last, Header head) {
    cells[last] = Cell{std::bit_cast<uint64_t>(head), kHeaderMeta};
  }

  uint32_t new_segment(uint32_t size_class, uint32_t depth);
  static Cell* place(Cell* cells, uint32_t bucket_mask, uint64_t hash, uint64_t meta);
  static Cell* put(Cell* bucket, uint64_t hash, uint64_t meta);
  static Cell* first_homed(Cell* cells, uint32_t bucket, uint32_t home, uint32_t mask);
  static Cell* first_that_may_move(Cell* cells, uint32_t pair, uint32_t to, uint32_t mask);
  void grow(Slot& slot, uint64_t hash);
  void double_segment(Slot& slot);
  void double_directory(Slot& slot);
  void split(Slot& slot, uint64_t hash);
  static uint32_t directory_class(uint32_t depth) { return depth < 6 ? 0 : depth - 6; }

  SegmentPool pool_;
  std::vector<Slot> slots_;
  uint32_t slot_bits_;
  const TableId* extent_table_;
};

}  // namespace springtide
