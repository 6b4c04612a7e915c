// Maps hashes to cells, slot by slot, under the slot's stripe lock. A slot starts with one small segment, which doubles
// up to 1024 cells. After that, the segments of the slot split one by one under a directory, so that growth moves only
// one segment at a time. Design: docs/design/slot-tables.md.
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

// Buddy allocator of index segments: blocks of 256 B and up, in powers of two, in one arena.
class SegmentPool {
 public:
  static constexpr size_t kUnit = 256;

  explicit SegmentPool(size_t reserve_bytes);

  uint32_t take(uint32_t size_class);  // zeroed, kUnit << size_class bytes
  void give_back(uint32_t unit, uint32_t size_class);
  uint8_t* at(uint32_t unit) const { return arena_.base() + unit * kUnit; }
  size_t resident() const;

 private:
  static constexpr uint32_t kClasses = 24;     // up to 2 GiB, for a directory of half a billion segments
  static constexpr uint32_t kChunkClass = 12;  // 1 MiB, which is taken from the arena at a time

  struct FreeBlock {  // stored in the free block itself
    uint32_t next, prev;
  };
  FreeBlock& links(uint32_t unit) { return *reinterpret_cast<FreeBlock*>(at(unit)); }
  void push_free(uint32_t unit, uint32_t size_class);
  void remove_free(uint32_t unit, uint32_t size_class);

  Arena arena_;
  Arena tags_arena_;
  uint8_t* tags_;  // for each unit, size class + 1 if a free block begins there, and otherwise 0
  std::mutex lock_;
  std::array<uint32_t, kClasses> free_{};  // 0 means that the slot has no segment, because unit 0 is never allocated
};

// One cache line. The block includes the directory, unless the slot is very large.
struct alignas(64) Slot {
  static constexpr uint32_t kInlineDepth = 3;

  uint32_t segments[1u << kInlineDepth] = {};  // the directory; if it is larger, [0] is its unit
  uint8_t depth = 0;                           // the directory has 2^depth entries
  uint16_t bucket_mask = 0;                    // number of buckets per segment minus one; 0: the slot is empty
  uint32_t cells = 0;                          // rows and candidates
  uint32_t rows = 0;
  uint64_t row_bytes = 0;  // weights and state of the rows
  uint64_t requests = 0;
};
static_assert(sizeof(Slot) == 64);

// A part of a slot: cells whose place is in [first, last]. The place of a cell is its hash without the slot bits, so it
// does not change when the index grows.
struct Places {
  uint64_t first = 0, last = UINT64_MAX;
};

class SlotIndex {
 public:
  SlotIndex(uint32_t slots, size_t reserve_bytes, const TableId* extent_table);

  Slot& slot(uint32_t number) { return slots_[number]; }

  // Returns the cache line where a search begins. Prefetch this cache line some time before find().
  const Cell* home(Slot& slot, uint64_t hash) const {
    return cells_at(segment_unit(slot, hash)) + (hash & slot.bucket_mask) * kBucket;
  }
  // Searches only the home line. Returns the cell, or nullptr. If `later` is set, other lines must be searched too.
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
  // Returns the cell of a row in its home line, or nullptr if the row is not there.
  static const Cell* row_at_home(uint64_t hash, TableId table, const Cell* home, const TableId* extent_table) {
    const unsigned hits = match(home, hash);
    if (hits == 0) [[unlikely]]
      return nullptr;
    const Cell* cell = home + __builtin_ctz(hits);
    return !is_candidate(cell->meta) && extent_table[extent_of(cell->meta)] == table ? cell : nullptr;
  }
  // Continues the search in the next line, after find_home() set `later`.
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
  Cell* find_slowly(Slot& slot, uint64_t hash, TableId table);  // searches all possible lines
  Cell* find(Slot& slot, uint64_t hash, TableId table, const Cell* home) {
    bool later = false;
    Cell* cell = find_home(hash, table, home, later);
    return later ? find_slowly(slot, hash, table) : cell;
  }
  Cell* find(Slot& slot, uint64_t hash, TableId table) { return find(slot, hash, table, home(slot, hash)); }

  // Returns the other bucket of the pair, to which a full bucket overflows.
  static const Cell* neighbour(const Cell* bucket) {
    return reinterpret_cast<const Cell*>(reinterpret_cast<uintptr_t>(bucket) ^ (kBucket * sizeof(Cell)));
  }

  Cell* insert(Slot& slot, uint64_t hash, uint64_t meta);  // the hash must be new; may move other cells
  // Returns the line that insert() reads first.
  const Cell* header_line(Slot& slot, uint64_t hash) const {
    return cells_at(segment_unit(slot, hash)) + size_t{slot.bucket_mask} * kBucket;
  }
  void erase(Slot& slot, Cell* cell);  // may move other cells of the segment
  void clear(Slot& slot);
  // Makes room for `cells` cells in an empty slot. The segments are as dense as after normal growth, so some of them
  // may still grow.
  void reserve(Slot& slot, uint64_t cells);

  const TableId* extent_table() const { return extent_table_; }
  bool belongs(uint64_t meta, TableId table) const { return table_of(meta) == table; }
  TableId table_of(uint64_t meta) const {
    return is_candidate(meta) ? candidate_table(meta) : extent_table_[extent_of(meta)];
  }

  // Visits every cell in use. The order depends only on the history of the slot. `visit` must not insert or erase.
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
  // Visits one segment, given any entry of the directory that refers to it. Returns the entry of the next segment.
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
  static constexpr uint32_t kBucket = 4;      // cells per cache line
  static constexpr uint32_t kFirstClass = 0;  // 16 cells
  static constexpr uint32_t kFullClass = 6;   // 1024 cells, 16 KiB
  static constexpr uint32_t kMaxDepth = 30;
  static constexpr uint32_t kMaxReserved = 12;  // greatest depth of a directory that reserve() makes

  // Stored in the last cell of a segment, in place of the hash. The cell's meta belongs to no table.
  struct Header {
    uint16_t count;
    uint16_t limit;  // the segment grows when it has more cells than this
    uint32_t depth;
  };
  static constexpr uint64_t kHeaderMeta = 1;

  // Returns the cells with this hash, as bits. The bits may include empty cells (hash 0), which belong to no table.
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
