#include "schedule/directory.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"

namespace springtide {

namespace {

constexpr size_t kLevels = 256;        // uses beyond this count alike
constexpr size_t kFewestCells = 1024;  // a power of two

size_t address_space(uint32_t workers, uint64_t capacity_rows) {
  const uint64_t most = std::min<uint64_t>(capacity_rows, (kNoRow - 1) / workers) * workers;
  return static_cast<size_t>(std::min<uint64_t>(most * sizeof(Directory::Row), machine_memory()));
}

}  // namespace

Directory::Directory(uint32_t workers, uint64_t capacity_rows, EvictOrder order)
    : capacity_(capacity_rows),
      levels_(order == EvictOrder::lru ? 1 : kLevels),
      words_((levels_ + 63) / 64),
      row_memory_("rows of the scheduler's directory", address_space(workers, capacity_rows)),
      rows_(reinterpret_cast<Row*>(row_memory_.base())),
      chains_(workers * levels_),
      filled_(workers * words_),
      count_(workers) {
  make_cells(kFewestCells);
}

void Directory::make_cells(size_t cells) {
  cell_memory_ = std::make_unique<Arena>("index of the scheduler's directory", cells * sizeof(Cell));
  cells_ = reinterpret_cast<Cell*>(cell_memory_->base() + cell_memory_->take(cells * sizeof(Cell), kLine));
  mask_ = cells - 1;
  std::fill_n(cells_, cells, Cell{0, kNoRow});
}

void Directory::place(uint32_t tag, RowAt row) {
  size_t at = home(tag);
  while (cells_[at].row != kNoRow) at = (at + 1) & mask_;
  cells_[at] = {tag, row};
}

void Directory::grow() {
  const std::unique_ptr<Arena> kept = std::move(cell_memory_);
  const Cell* old = cells_;
  const size_t cells = mask_ + 1;
  make_cells(cells * 2);
  for (size_t at = 0; at < cells; ++at) {
    if (old[at].row != kNoRow) place(old[at].tag, old[at].row);
  }
}

RowAt Directory::add(TableId table, Key key, uint64_t hash, uint32_t owner) {
  if (2 * (live_ + 1) > mask_) grow();
  RowAt at;
  if (free_.empty()) {
    row_memory_.take(sizeof(Row), alignof(Row));
    at = static_cast<RowAt>(made_++);
  } else {
    at = free_.back();
    free_.pop_back();
  }
  rows_[at] = {key, 0, kNoRow, kNoRow, table, static_cast<uint16_t>(owner), 0, 0};
  place(tag_of(hash), at);
  ++live_;
  if (table >= by_table_.size()) by_table_.resize(size_t{table} + 1);
  ++by_table_[table];
  return at;
}

// No tombstones: what follows the hole and could stand in it moves there.
void Directory::forget(RowAt at) {
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

void Directory::unlink(RowAt at) {
  const Row& row = rows_[at];
  const size_t level = this->level(row);
  Chain& chain = chains_[row.owner * levels_ + level];
  (row.before == kNoRow ? chain.youngest : rows_[row.before].after) = row.after;
  (row.after == kNoRow ? chain.oldest : rows_[row.after].before) = row.before;
  if (chain.oldest == kNoRow) filled_[row.owner * words_ + level / 64] &= ~(uint64_t{1} << level % 64);
  --count_[row.owner];
}

void Directory::link(RowAt at, uint32_t owner, uint64_t step) {
  Row& row = rows_[at];
  if (row.owner != owner) row.uses = 0;  // uses count in one cache
  row.owner = static_cast<uint16_t>(owner);
  row.trained = step;
  row.uses = static_cast<uint16_t>(std::min<size_t>(row.uses + 1, kLevels - 1));
  const size_t level = this->level(row);
  Chain& chain = chains_[owner * levels_ + level];
  row.before = kNoRow;
  row.after = chain.youngest;
  (chain.youngest == kNoRow ? chain.oldest : rows_[chain.youngest].before) = at;
  chain.youngest = at;
  filled_[owner * words_ + level / 64] |= uint64_t{1} << level % 64;
  ++count_[owner];
}

RowAt Directory::oldest(uint32_t worker) const {
  for (size_t word = 0; word < words_; ++word) {
    const uint64_t bits = filled_[worker * words_ + word];
    if (bits != 0) return chains_[worker * levels_ + word * 64 + std::countr_zero(bits)].oldest;
  }
  return kNoRow;
}

std::vector<RowAt> Directory::order_of(uint32_t worker) const {
  std::vector<RowAt> found;
  for (size_t level = 0; level < levels_; ++level) {
    RowAt at = chains_[worker * levels_ + level].oldest;
    for (; at != kNoRow; at = rows_[at].before) found.push_back(at);
  }
  return found;
}

void Directory::clear() {
  std::fill_n(cells_, mask_ + 1, Cell{0, kNoRow});
  std::fill(chains_.begin(), chains_.end(), Chain{});
  std::fill(filled_.begin(), filled_.end(), 0);
  std::fill(count_.begin(), count_.end(), 0);
  std::fill(by_table_.begin(), by_table_.end(), 0);
  free_.clear();
  for (size_t row = made_; row > 0; --row) free_.push_back(static_cast<RowAt>(row - 1));
  live_ = 0;
}

}  // namespace springtide
