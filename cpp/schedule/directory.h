// Directory of all workers' caches: which worker caches which row, and the eviction order of each cache. Every rank
// keeps an identical copy, so no messages are needed. A row has at most one owner (cache_plan.h). schedule.h uses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/cpu.h"
#include "base/hash.h"
#include "base/types.h"
#include "store/index/arena.h"

namespace springtide {

using RowAt = uint32_t;
constexpr RowAt kNoRow = UINT32_MAX;

class Directory {
 public:
  struct Row {
    Key key;
    uint64_t trained;     // last step that trained the row; the row is dirty until a flush of this step or a later one
    RowAt before, after;  // neighbours in its owner's eviction order; `after` is the older row
    TableId table;
    uint16_t owner;
  };

  Directory(uint32_t workers, uint64_t capacity_rows)
      : row_memory_("rows of the scheduler's directory", address_space(workers, capacity_rows)),
        rows_(reinterpret_cast<Row*>(row_memory_.base())),
        chains_(workers),
        count_(workers) {
    make_cells(kFewestCells);
  }

  RowAt find(TableId table, Key key, uint64_t hash) const {
    for (size_t at = home(tag_of(hash));; at = (at + 1) & mask_) {
      const Cell cell = cells_[at];
      if (cell.row == kNoRow) return kNoRow;
      if (cell.tag == tag_of(hash) && rows_[cell.row].key == key && rows_[cell.row].table == table) return cell.row;
    }
  }
  // Prefetches the two memory locations that a lookup reads, because both may miss all CPU caches.
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

  // Adds a row that no worker caches yet. `owner` becomes the row's owner, but the row enters the eviction order only
  // with link().
  RowAt add(TableId table, Key key, uint64_t hash, uint32_t owner) {
    if (2 * (live_ + 1) > mask_) grow();
    RowAt at;
    if (free_.empty()) {
      row_memory_.take(sizeof(Row), alignof(Row));
      at = static_cast<RowAt>(made_++);
    } else {
      at = free_.back();
      free_.pop_back();
    }
    rows_[at] = {key, 0, kNoRow, kNoRow, table, static_cast<uint16_t>(owner)};
    place(tag_of(hash), at);
    ++live_;
    if (table >= by_table_.size()) by_table_.resize(size_t{table} + 1);
    ++by_table_[table];
    return at;
  }
  // Removes an unlinked row. There is no tombstone: later cells of the probe sequence move up to fill the gap.
  void forget(RowAt at) {
    const Row& row = rows_[at];
    size_t hole = home(tag_of(hash_key(row.table, row.key)));
    while (cells_[hole].row != at) hole = (hole + 1) & mask_;
    for (size_t next = (hole + 1) & mask_; cells_[next].row != kNoRow; next = (next + 1) & mask_) {
      const size_t from_home = (next - home(cells_[next].tag)) & mask_;
      if (from_home < ((next - hole) & mask_)) continue;
      cells_[hole] = cells_[next];
      hole = next;
    }
    cells_[hole].row = kNoRow;
    --by_table_[row.table];
    --live_;
    free_.push_back(at);
  }
  // unlink() removes a row from its owner's eviction order. link() adds a row as the newest, which step `step` trained.
  void unlink(RowAt at) {
    const Row& row = rows_[at];
    Chain& chain = chains_[row.owner];
    (row.before == kNoRow ? chain.youngest : rows_[row.before].after) = row.after;
    (row.after == kNoRow ? chain.oldest : rows_[row.after].before) = row.before;
    --count_[row.owner];
  }
  void link(RowAt at, uint32_t owner, uint64_t step) {
    Row& row = rows_[at];
    row.owner = static_cast<uint16_t>(owner);
    row.trained = step;
    Chain& chain = chains_[owner];
    row.before = kNoRow;
    row.after = chain.youngest;
    (chain.youngest == kNoRow ? chain.oldest : rows_[chain.youngest].before) = at;
    chain.youngest = at;
    ++count_[owner];
  }
  // Returns the row that the worker evicts next; kNoRow if the worker caches no row.
  RowAt oldest(uint32_t worker) const { return chains_[worker].oldest; }
  // Returns all rows of the worker, the next to be evicted first.
  std::vector<RowAt> order_of(uint32_t worker) const {
    std::vector<RowAt> found;
    for (RowAt at = oldest(worker); at != kNoRow; at = rows_[at].before) found.push_back(at);
    return found;
  }
  void clear() {
    std::fill_n(cells_, mask_ + 1, Cell{0, kNoRow});
    std::fill(chains_.begin(), chains_.end(), Chain{});
    std::fill(count_.begin(), count_.end(), 0);
    std::fill(by_table_.begin(), by_table_.end(), 0);
    free_.clear();
    for (size_t row = made_; row > 0; --row) free_.push_back(static_cast<RowAt>(row - 1));
    live_ = 0;
  }

 private:
  static constexpr size_t kFewestCells = 1024;  // a power of two
  static size_t address_space(uint32_t workers, uint64_t capacity_rows) {
    const uint64_t most = std::min<uint64_t>(capacity_rows, (kNoRow - 1) / workers) * workers;
    return static_cast<size_t>(std::min<uint64_t>(most * sizeof(Row), machine_memory()));
  }
  struct Cell {
    uint32_t tag;
    RowAt row;
  };
  struct Chain {
    RowAt youngest = kNoRow, oldest = kNoRow;
  };
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  size_t home(uint32_t tag) const { return tag & mask_; }
  void make_cells(size_t cells) {
    cell_memory_ = std::make_unique<Arena>("index of the scheduler's directory", cells * sizeof(Cell));
    cells_ = reinterpret_cast<Cell*>(cell_memory_->base() + cell_memory_->take(cells * sizeof(Cell), kLine));
    mask_ = cells - 1;
    std::fill_n(cells_, cells, Cell{0, kNoRow});
  }
  void grow() {
    const std::unique_ptr<Arena> kept = std::move(cell_memory_);
    const Cell* old = cells_;
    const size_t cells = mask_ + 1;
    make_cells(cells * 2);
    for (size_t at = 0; at < cells; ++at) {
      if (old[at].row != kNoRow) place(old[at].tag, old[at].row);
    }
  }
  void place(uint32_t tag, RowAt row) {
    size_t at = home(tag);
    while (cells_[at].row != kNoRow) at = (at + 1) & mask_;
    cells_[at] = {tag, row};
  }

  Arena row_memory_;
  Row* rows_ = nullptr;
  size_t made_ = 0;
  std::vector<RowAt> free_;
  uint64_t live_ = 0;
  std::unique_ptr<Arena> cell_memory_;
  Cell* cells_ = nullptr;
  size_t mask_ = 0;
  std::vector<Chain> chains_;  // by worker, as are the counts
  std::vector<uint64_t> count_;
  std::vector<uint64_t> by_table_;
};

}  // namespace springtide
