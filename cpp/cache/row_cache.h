// Row images (types.h) by 64-bit key, in slabs by size, with dirty flags, byte counts and eviction order. The
// owner, cached_backend.h or versioned_backend.h, decides what to keep.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/types.h"

namespace springtide {

enum class CacheOrder : uint8_t { lru = 0, lfu = 1 };  // who goes first: the longest unused, the least used

struct CachedRow {
  uint64_t hash = 0;  // stands for the key, as in cell.h
  TableId table = 0;
  bool dirty = false;   // changed here, and not on the server yet: set_dirty()
  uint32_t floats = 0;  // of the image
  float* image = nullptr;
  uint64_t version = 0;  // whatever the owner of the cache counts: steps, or clocks of the server
  uint64_t uses = 0;     // lfu
  CachedRow *older = nullptr, *newer = nullptr;

  Key key() const;
};

class RowCache {
 public:
  explicit RowCache(CacheOrder order = CacheOrder::lru) : order_(order) {}
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  CachedRow* find(TableId table, Key key) const;  // nullptr: not here
  // A row that is not here yet, the newest of all, clean; its image holds anything. Stays where it is until
  // it is erased.
  CachedRow& insert(TableId table, Key key, uint32_t floats);
  void erase(CachedRow& row);
  void clear();

  void set_dirty(CachedRow& row, bool dirty);
  void touch(CachedRow& row);      // it was used just now
  CachedRow* next_victim() const;  // by the order; nullptr when it is empty

  // In a repeatable order, that of insertion into free places. `visit` may erase none.
  template <class Visit>
  void for_each(Visit visit) {
    for (CachedRow& row : rows_)
      if (row.image != nullptr) visit(row);
  }

  size_t rows() const { return count_; }
  size_t dirty_rows() const { return dirty_; }
  uint64_t bytes() const { return image_bytes_ + count_ * kRowBytes; }
  uint64_t dirty_bytes() const { return dirty_bytes_ + dirty_ * kRowBytes; }
  uint64_t resident_bytes() const;  // slack of slabs and index included
  // What one more row of that size is counted as, index and all.
  static uint64_t row_bytes(uint32_t floats) { return kRowBytes + floats * uint64_t{sizeof(float)}; }

 private:
  static constexpr uint64_t kRowBytes = sizeof(CachedRow) + 2 * sizeof(uint32_t);
  static constexpr uint32_t kFree = ~0u;
  static constexpr size_t kSlabBytes = 256 << 10;

  // Places for images of one size.
  struct Slab {
    std::vector<std::unique_ptr<float[]>> pieces;
    std::vector<float*> free;
    uint64_t bytes = 0;
  };
  struct Ring {  // rows of one number of uses
    CachedRow *oldest = nullptr, *newest = nullptr;
  };

  size_t place_of(uint64_t hash, TableId table) const;
  void grow();
  float* take(uint32_t floats);
  void link(CachedRow& row);
  void unlink(CachedRow& row);

  CacheOrder order_;
  std::deque<CachedRow> rows_;       // never moved; those without an image are free
  std::vector<uint32_t> free_rows_;  // places in rows_
  std::vector<uint32_t> index_;      // open addressing: a place in rows_
  std::map<uint32_t, Slab> slabs_;   // by floats
  std::map<uint64_t, Ring> rings_;   // by uses; lru has one
  size_t count_ = 0, dirty_ = 0;
  uint64_t image_bytes_ = 0, dirty_bytes_ = 0;
};

}  // namespace springtide
