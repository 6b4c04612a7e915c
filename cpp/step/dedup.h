// Deduplicates the ids of one table in a batch: finds the index of each id's unique key, in the order of first
// occurrence.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu.h"
#include "base/hash.h"
#include "base/types.h"

namespace springtide {

// An open-addressing index, reused for every table of every step. A stamp marks old entries, so that the index is never
// cleared and the ids of one table stay in the L1 and L2 caches.
class KeyIndex {
  struct Cell {
    Key key = 0;
    uint64_t tag = 0;  // upper 32 bits: stamp; lower 32 bits: index
  };

 public:
  // The index of one table while it is filled. Loops keep a copy, so that its members stay in registers.
  class Filling {
   public:
    // Loads the first cell of a key that will be looked up soon.
    void prefetch(uint64_t hash) const { prefetch_read(&cells_[hash & mask_]); }

    // Returns the index under which `key` was first seen. If the key is new, adds it and returns `next`.
    [[gnu::always_inline]] uint32_t find_or_add(Key key, uint64_t hash, uint32_t next) const {
      for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
        Cell& cell = cells_[at];
        // The branch predictor cannot guess whether a key is new, so no branch depends on it. Usually the first cell
        // decides.
        const bool fresh = (cell.tag ^ stamp_) >> 32 != 0;
        if (branchless(unsigned{fresh} | unsigned{cell.key == key})) [[likely]] {
          const uint64_t tag = fresh ? stamp_ | next : cell.tag;
          cell.key = key;
          cell.tag = tag;
          return static_cast<uint32_t>(tag);
        }
      }
    }

   private:
    friend class KeyIndex;
    Filling(Cell* cells, size_t mask, uint64_t stamp) : cells_(cells), mask_(mask), stamp_(stamp) {}
    Cell* cells_;
    size_t mask_;
    uint64_t stamp_;
  };

  // Makes room for `ids` keys of a new table.
  Filling begin(size_t ids) {
    size_t wanted = 64;
    while (wanted < 2 * ids) wanted *= 2;
    if (wanted > cells_.size()) cells_.assign(wanted, Cell{});
    if (++stamp_ == 0) {
      for (Cell& cell : cells_) cell.tag = 0;
      stamp_ = 1;
    }
    return {cells_.data(), wanted - 1, uint64_t{stamp_} << 32};
  }

 private:
  std::vector<Cell> cells_;
  uint32_t stamp_ = 0;
};

}  // namespace springtide
