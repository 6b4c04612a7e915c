// Stores row images (types.h) by 64-bit key, in slabs by size, with dirty flags, byte counts and eviction order. The
// owner, cached_backend.h or versioned_backend.h, decides what to cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "base/types.h"

namespace springtide {

struct CachedRow {
  uint64_t hash = 0;  // hash that identifies the key, as in cell.h
  TableId table = 0;
  bool dirty = false;   // true if the row was changed here and not yet written to the server; set it with set_dirty()
  uint32_t floats = 0;  // of the image
  float* image = nullptr;
  uint64_t version = 0;  // the cache's owner defines its meaning: a step, or an update count of the server
  CachedRow *older = nullptr, *newer = nullptr;

  Key key() const { return key_of(table, hash); }
};

class RowCache : public NoCopy {
 public:
  // nullptr: not cached
  CachedRow* find(TableId table, Key key) const {
    if (count_ == 0) return nullptr;
    const uint32_t row = index_[place_of(hash_key(table, key), table)];
    return row == kFree ? nullptr : const_cast<CachedRow*>(&rows_[row]);
  }
  // Adds a clean row with an undefined image as the newest. The row's address is stable until the row is erased.
  CachedRow& insert(TableId table, Key key, uint32_t floats) {
    if (2 * (count_ + 1) > index_.size()) grow();
    const uint64_t hash = hash_key(table, key);
    const size_t at = place_of(hash, table);
    if (index_[at] != kFree) throw BadInput("key ", key, " is cached already");
    if (free_rows_.empty()) {
      free_rows_.push_back(static_cast<uint32_t>(rows_.size()));
      rows_.emplace_back();
    }
    index_[at] = free_rows_.back();
    free_rows_.pop_back();
    CachedRow& row = rows_[index_[at]];
    row = CachedRow{.hash = hash, .table = table, .floats = floats, .image = take(floats)};
    ++count_;
    image_bytes_ += floats * sizeof(float);
    link(row);
    return row;
  }
  void erase(CachedRow& row) {
    set_dirty(row, false);
    unlink(row);
    size_t hole = place_of(row.hash, row.table);
    free_rows_.push_back(index_[hole]);
    slabs_[row.floats].free.push_back(row.image);
    image_bytes_ -= row.floats * sizeof(float);
    --count_;
    row.image = nullptr;
    // Moves later entries of the probe sequence up, so that no search ends at the hole.
    const size_t mask = index_.size() - 1;
    for (size_t at = (hole + 1) & mask; index_[at] != kFree; at = (at + 1) & mask) {
      const size_t home = rows_[index_[at]].hash & mask;
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      index_[hole] = index_[at];
      hole = at;
    }
    index_[hole] = kFree;
  }
  void clear() {
    rows_.clear();
    free_rows_.clear();
    index_.clear();
    slabs_.clear();
    oldest_ = newest_ = nullptr;
    count_ = dirty_ = 0;
    image_bytes_ = dirty_bytes_ = 0;
  }

  void set_dirty(CachedRow& row, bool dirty) {
    if (row.dirty == dirty) return;
    row.dirty = dirty;
    const uint64_t bytes = row.floats * sizeof(float);
    dirty ? ++dirty_ : --dirty_;
    dirty_bytes_ += dirty ? bytes : 0 - bytes;
  }
  // Marks the row as used now.
  void touch(CachedRow& row) {
    if (row.newer == nullptr) return;
    unlink(row);
    link(row);
  }
  // Returns the row to evict next, which was used longest ago; nullptr if the cache is empty.
  CachedRow* next_victim() const { return oldest_; }

  // Visits all rows in the order of their positions in rows_, which is the same in every run. `visit` must not erase
  // rows.
  template <class Visit>
  void for_each(Visit visit) {
    for (CachedRow& row : rows_)
      if (row.image != nullptr) visit(row);
  }

  size_t rows() const { return count_; }
  size_t dirty_rows() const { return dirty_; }
  uint64_t bytes() const { return image_bytes_ + count_ * kRowBytes; }
  uint64_t dirty_bytes() const { return dirty_bytes_ + dirty_ * kRowBytes; }
  // Bytes that one more row of this size needs, with its index entry.
  static uint64_t row_bytes(uint32_t floats) { return kRowBytes + floats * uint64_t{sizeof(float)}; }

 private:
  static constexpr uint64_t kRowBytes = sizeof(CachedRow) + 2 * sizeof(uint32_t);
  static constexpr uint32_t kFree = ~0u;
  static constexpr size_t kSlabBytes = 256 << 10;

  // Memory for images of one size.
  struct Slab {
    std::vector<std::unique_ptr<float[]>> pieces;
    std::vector<float*> free;
    uint64_t bytes = 0;
  };

  // Returns the row's position in the index, or the empty cell where it would be inserted.
  size_t place_of(uint64_t hash, TableId table) const {
    const size_t mask = index_.size() - 1;
    size_t at = hash & mask;
    while (index_[at] != kFree && (rows_[index_[at]].hash != hash || rows_[index_[at]].table != table))
      at = (at + 1) & mask;
    return at;
  }
  void grow() {
    index_.assign(std::max<size_t>(64, index_.size() * 2), kFree);
    for (size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].image != nullptr) index_[place_of(rows_[i].hash, rows_[i].table)] = static_cast<uint32_t>(i);
  }
  float* take(uint32_t floats) {
    Slab& slab = slabs_[floats];
    if (slab.free.empty()) {
      const size_t row = std::max<size_t>(floats, 1);
      // A small cache allocates little memory, and a growing cache allocates more at a time.
      const size_t had = slab.bytes / (row * sizeof(float));
      const size_t most = std::max<size_t>(1, kSlabBytes / (row * sizeof(float)));
      const size_t wanted = std::clamp<size_t>(had, 1, most);
      slab.pieces.push_back(std::make_unique<float[]>(wanted * row));
      slab.bytes += wanted * row * sizeof(float);
      for (size_t i = wanted; i-- > 0;) slab.free.push_back(slab.pieces.back().get() + i * row);
    }
    float* image = slab.free.back();
    slab.free.pop_back();
    return image;
  }
  void link(CachedRow& row) {
    row.older = newest_;
    row.newer = nullptr;
    (newest_ == nullptr ? oldest_ : newest_->newer) = &row;
    newest_ = &row;
  }
  void unlink(CachedRow& row) {
    (row.older == nullptr ? oldest_ : row.older->newer) = row.newer;
    (row.newer == nullptr ? newest_ : row.newer->older) = row.older;
  }

  std::deque<CachedRow> rows_;       // never moved; rows without an image are free
  std::vector<uint32_t> free_rows_;  // places in rows_
  std::vector<uint32_t> index_;      // open addressing: a place in rows_
  std::map<uint32_t, Slab> slabs_;   // by floats
  CachedRow *oldest_ = nullptr, *newest_ = nullptr;
  size_t count_ = 0, dirty_ = 0;
  uint64_t image_bytes_ = 0, dirty_bytes_ = 0;
};

}  // namespace springtide
