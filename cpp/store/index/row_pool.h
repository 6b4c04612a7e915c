// Rows of all tables in one arena. A table takes extents of 64 KiB; if rows are long, it takes several together. An
// extent has first the weights of its rows, then the optimizer's vectors, and then its numbers, one per row. A pull
// therefore touches only weights.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "store/index/arena.h"
#include "store/index/cell.h"

namespace springtide {

constexpr size_t kExtentBytes = size_t{64} << 10;

// Allocates extents, and maps extent numbers to tables to distinguish equal hashes of different tables.
class ExtentArena {
 public:
  explicit ExtentArena(size_t reserve_bytes);
  uint32_t take(uint32_t extents, TableId table);
  uint8_t* at(uint32_t extent) const { return arena_.base() + extent * kExtentBytes; }
  const TableId* tables() const { return tables_; }
  size_t resident() const { return arena_.resident(); }

 private:
  Arena arena_;
  Arena tables_arena_;
  TableId* tables_;
};

class RowPool {
 public:
  RowPool(ExtentArena& arena, TableId table, uint32_t weight_bytes, uint32_t vector_bytes, uint32_t number_bytes);

  // The caller holds the stripe's lock. A call takes the table's own lock only once for several rows. take() and
  // give_back() cannot fail if expect() and expect_back() announced the rows. For rows that were not announced, these
  // two calls may throw; they then change nothing.
  RowHandle take(uint32_t stripe);
  void give_back(uint32_t stripe, RowHandle row);
  void expect(uint32_t stripe);           // announces that one more row will be taken
  void expect_back(uint32_t stripe);      // announces that one more row will be given back
  void settle(uint32_t stripe) noexcept;  // ends everything that expect() and expect_back() have announced

  uint8_t* weights(RowHandle row) const { return arena_.at(extent_of(row)) + size_t{row_of(row)} * weight_bytes_; }
  float* vectors(RowHandle row) const {
    return reinterpret_cast<float*>(arena_.at(extent_of(row)) + vectors_at_ + size_t{row_of(row)} * vector_bytes_);
  }
  float* number(RowHandle row) const {
    return reinterpret_cast<float*>(arena_.at(extent_of(row)) + numbers_at_) + row_of(row);
  }
  uint8_t* base() const { return arena_.at(0); }
  size_t vectors_at() const { return vectors_at_; }
  size_t numbers_at() const { return numbers_at_; }

 private:
  struct alignas(64) Stripe {
    std::vector<RowHandle> free;
    uint64_t taken = 0;  // rows in use
    size_t expected = 0, expected_back = 0;
  };
  void refill(Stripe& stripe);

  ExtentArena& arena_;
  TableId table_;
  uint32_t weight_bytes_, vector_bytes_;
  uint32_t extents_ = 1;                    // number of extents that are taken together
  uint32_t rows_ = 0;                       // rows in them
  size_t vectors_at_ = 0, numbers_at_ = 0;  // offsets of the first row's vectors and numbers in an extent
  std::unique_ptr<std::array<Stripe, kStripes>> stripes_;
  std::mutex lock_;
  std::vector<RowHandle> free_;  // rows that stripes with too many free rows have returned
  uint32_t extent_ = 0, next_row_ = 0;
};

}  // namespace springtide
