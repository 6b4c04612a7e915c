// Which ids of a batch are the same key. In: ids of one table, feature by feature. Out: an index per
// occurrence into the unique keys, in the order in which they first come. Next: row_set.h routes them.
#pragma once

#include <cstdint>
#include <vector>

#include "hash.h"
#include "types.h"

namespace springtide {

// An open-addressing index that is used again for every table of every step: a stamp tells what is old, so
// nothing is cleared, and one table's ids of a batch stay in the first levels of the cache.
class KeyIndex {
 public:
  // Room for `ids` keys of a new table.
  void begin(size_t ids) {
    size_t wanted = 64;
    while (wanted < 2 * ids) wanted *= 2;
    if (wanted > cells_.size()) cells_.assign(wanted, Cell{});
    mask_ = wanted - 1;
    if (++stamp_ == 0) {
      for (Cell& cell : cells_) cell.stamp = 0;
      stamp_ = 1;
    }
  }

  // The index under which `key` was first seen, or `next` when this is the first time (then it is kept).
  uint32_t find_or_add(Key key, uint64_t hash, uint32_t next) {
    for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
      Cell& cell = cells_[at];
      if (cell.stamp != stamp_) {
        cell = {key, next, stamp_};
        return next;
      }
      if (cell.key == key) return cell.index;
    }
  }

 private:
  struct Cell {
    Key key = 0;
    uint32_t index = 0;
    uint32_t stamp = 0;
  };
  std::vector<Cell> cells_;
  size_t mask_ = 0;
  uint32_t stamp_ = 0;
};

}  // namespace springtide
