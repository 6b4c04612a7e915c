// Directory of all worker caches: which worker caches which row, and its eviction order. Every rank keeps an
// identical copy, so no messages are needed. A row has at most one owner (cache_plan.h). Used by schedule.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/prefetch.h"
#include "base/types.h"
#include "store/index/arena.h"

namespace springtide {

enum class EvictOrder : uint8_t { lru = 0, lfu = 1 };  // lfu: fewest uses while cached, among them the oldest

using RowAt = uint32_t;
constexpr RowAt kNoRow = UINT32_MAX;

class Directory {
 public:
  struct Row {
    Key key;
    uint64_t trained;     // step that trained it last: dirty while no flush covers it
    RowAt before, after;  // in its owner's order; `after` is the older one
    TableId table;
    uint16_t owner;
    uint16_t uses;
    uint16_t padding;
  };

  Directory(uint32_t workers, uint64_t capacity_rows, EvictOrder order);

  RowAt find(TableId table, Key key, uint64_t hash) const {
    for (size_t at = home(tag_of(hash));; at = (at + 1) & mask_) {
      const Cell cell = cells_[at];
      if (cell.row == kNoRow) return kNoRow;
      if (cell.tag == tag_of(hash) && rows_[cell.row].key == key && rows_[cell.row].table == table) return cell.row;
    }
  }
  // The two steps of a lookup that may miss every cache of the processor, ahead of it.
  void prefetch_cell(uint64_t hash) const { prefetch_read(&cells_[home(tag_of(hash))]); }
  void prefetch_row(uint64_t hash) const {
    const Cell cell = cells_[home(tag_of(hash))];
    if (cell.row != kNoRow) prefetch_read(&rows_[cell.row]);
  }
  void prefetch_row_at(RowAt at) const { prefetch_read(&rows_[at]); }
  void prefetch_neighbours(RowAt at) const {
    if (rows_[at].before != kNoRow) prefetch_read(&rows_[rows_[at].before]);
    if (rows_[at].after != kNoRow) prefetch_read(&rows_[rows_[at].after]);
  }

  const Row& row(RowAt at) const { return rows_[at]; }
  uint64_t rows_of(uint32_t worker) const { return count_[worker]; }
  uint64_t rows_of_table(TableId table) const { return table < by_table_.size() ? by_table_[table] : 0; }
  uint64_t rows() const { return live_; }
  uint64_t capacity() const { return capacity_; }
  uint32_t workers() const { return static_cast<uint32_t>(count_.size()); }

  // A row that nobody caches yet, in the hands of `owner` but not in its order: link() comes next.
  RowAt add(TableId table, Key key, uint64_t hash, uint32_t owner);
  void forget(RowAt at);  // unlinked before
  // Takes a row out of its owner's order, or puts it there as the youngest, trained in `step`.
  void unlink(RowAt at);
  void link(RowAt at, uint32_t owner, uint64_t step);
  RowAt oldest(uint32_t worker) const;                 // the next victim; kNoRow: it caches nothing
  std::vector<RowAt> order_of(uint32_t worker) const;  // all its rows, next victim first
  void clear();

 private:
  struct Cell {
    uint32_t tag;
    RowAt row;
  };
  struct Chain {
    RowAt youngest = kNoRow, oldest = kNoRow;
  };
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  size_t home(uint32_t tag) const { return tag & mask_; }
  void make_cells(size_t cells);
  void grow();
  void place(uint32_t tag, RowAt row);
  size_t level(const Row& row) const { return levels_ == 1 ? 0 : row.uses; }

  const uint64_t capacity_;
  const size_t levels_;  // of use counts; one for lru
  const size_t words_;   // a worker of filled_
  Arena row_memory_;
  Row* rows_ = nullptr;
  size_t made_ = 0;
  std::vector<RowAt> free_;
  uint64_t live_ = 0;
  std::unique_ptr<Arena> cell_memory_;
  Cell* cells_ = nullptr;
  size_t mask_ = 0;
  std::vector<Chain> chains_;     // worker by worker, level by level
  std::vector<uint64_t> filled_;  // a bit a chain that is not empty, in words of one worker

  std::vector<uint64_t> count_;
  std::vector<uint64_t> by_table_;
};

}  // namespace springtide
