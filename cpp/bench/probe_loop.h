// Upper bound for any hashed table: a loop that reads one random index cell, then its row (and updates the
// row). Same bytes, prefetches, huge pages and kernels as the store; no hashing, comparing, locks or growth.
// `springtide bench store` measures both in one run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "store/index/arena.h"
#include "store/kernels/kernels.h"
#include "store/kernels/optimizer.h"

namespace springtide {

class ProbeLoop {
 public:
  // Rows of this spec in one arena, weights and state of a row side by side; cells in a random order.
  ProbeLoop(const TableSpec& spec, uint64_t rows, uint64_t seed);

  // places[i] < rows(): which cell to read. out: one row after the other.
  void gather(std::span<const int64_t> places, float* out) const;
  void scatter(std::span<const int64_t> places, const float* grads, const Hyper& hyper);

  uint64_t rows() const { return rows_; }
  uint32_t dim() const { return spec_.dim; }

 private:
  struct Cell {
    uint64_t key, row;
  };
  void check(std::span<const int64_t> places) const;

  TableSpec spec_;
  uint64_t rows_;
  Optimizer optimizer_;
  uint32_t weight_bytes_, vectors_at_, number_at_, row_bytes_;
  Arena cells_arena_, rows_arena_;
  Cell* cells_;
  uint8_t* base_;
};

}  // namespace springtide
