// One table at run time: its spec, everything that follows from the spec, and its rows. All uses of the table are under
// the stripe locks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "base/types.h"
#include "store/index/row_pool.h"
#include "store/kernels/optimizer.h"
#include "store/kernels/row_init.h"

namespace springtide {

// A row that was among the oldest rows of its slot at the last scan.
struct Victim {
  uint64_t age, hash;
  uint32_t stamp;
};

// For a table with a capacity: how many rows it has in one slot, and which rows are evicted next.
struct Quota {
  uint64_t rows = 0;
  uint64_t expected = 0;  // rows that the current push will add
  std::vector<Victim> oldest_last;
};

// Memory for the float32 weights of a 16-bit row, valid until the next call in this thread.
inline float* half_row(uint32_t dim) {
  thread_local std::vector<float> wide;
  if (wide.size() < dim) wide.resize(dim);
  return wide.data();
}

struct Table {
  Table(const TableSpec& wanted, uint32_t slots, uint64_t seed, ExtentArena& arena)
      : spec(wanted),
        dim(spec.dim),
        optimizer(spec.optim, dim, spec.name),
        weight_bytes(dim * bytes_of(spec.dtype)),
        vector_bytes(optimizer.vector_floats() * 4),
        number_bytes(optimizer.has_number() ? 4 : 0),
        init(spec.init, dim, seed),
        rows(arena, spec.id, weight_bytes, vector_bytes, number_bytes),
        share(spec.capacity_rows == 0 ? 0 : (spec.capacity_rows + slots - 1) / slots),
        quotas(share == 0 ? 0 : slots) {}

  const TableSpec spec;
  const uint32_t dim;
  const Optimizer optimizer;
  const uint32_t weight_bytes, vector_bytes, number_bytes;
  const RowInit init;
  RowPool rows;
  const uint64_t share;       // most rows per slot; 0 means no limit
  std::vector<Quota> quotas;  // by slot
  std::atomic<int64_t> count{0};

  // Reads a missing row: returns the value with which the row would be created.
  void read_init(uint64_t hash, float* out) const {
    init.fill(hash, out, dim);
    if (spec.dtype == DType::f32) return;
    std::vector<uint16_t> stored(dim);
    narrow(spec.dtype, out, stored.data(), dim);
    widen(spec.dtype, stored.data(), out, dim);
  }
  uint32_t image_floats() const { return dim + optimizer.state_floats(); }
  void read_image(const uint8_t* weights, const float* vectors, const float* number, float* out) const {
    widen(spec.dtype, weights, out, dim);
    std::copy_n(vectors, optimizer.vector_floats(), out + dim);
    if (optimizer.has_number()) out[dim + optimizer.vector_floats()] = *number;
  }
  void read_init_image(uint64_t hash, float* out) const {
    read_init(hash, out);
    optimizer.reset(out + dim, out + dim + optimizer.vector_floats());
  }
  void write_image(RowHandle row, const float* image) {
    narrow(spec.dtype, image, rows.weights(row), dim);
    std::copy_n(image + dim, optimizer.vector_floats(), rows.vectors(row));
    if (optimizer.has_number()) *rows.number(row) = image[dim + optimizer.vector_floats()];
  }
  // bytes of a row together with its state
  uint32_t bytes() const { return weight_bytes + vector_bytes + number_bytes; }
  void write(RowHandle row, const float* weights) {
    narrow(spec.dtype, weights, rows.weights(row), dim);
    optimizer.reset(rows.vectors(row), rows.number(row));
  }
  void write_init(RowHandle row, uint64_t hash) {
    if (spec.dtype == DType::f32) {
      init.fill(hash, reinterpret_cast<float*>(rows.weights(row)), dim);
      optimizer.reset(rows.vectors(row), rows.number(row));
    } else {
      float* const weights = half_row(dim);
      init.fill(hash, weights, dim);
      write(row, weights);
    }
  }
};

// Copies sixteen bytes at a time. Otherwise, the compiler may use `rep movs`, which is slow for short rows. A length
// known at compile time (`kCount`) needs no loop.
template <uint32_t kCount = 0>
void copy_floats(const uint8_t* from, float* out, uint32_t length) {
  using Lanes = float __attribute__((vector_size(16), aligned(4), may_alias));
  const uint32_t count = kCount != 0 ? kCount : length;
  const auto* in = reinterpret_cast<const Lanes*>(from);
  auto* to = reinterpret_cast<Lanes*>(out);
  uint32_t i = 0;
  for (; i + 4 <= count / 4; i += 4) {
    Lanes a = in[i], b = in[i + 1], c = in[i + 2], d = in[i + 3];
    to[i] = a, to[i + 1] = b, to[i + 2] = c, to[i + 3] = d;
  }
  for (; i < count / 4; ++i) to[i] = in[i];
  for (i *= 4; i < count; ++i) std::memcpy(out + i, from + i * sizeof(float), sizeof(float));
}

inline void read_row(DType dtype, const uint8_t* from, float* out, uint32_t dim) {
  if (dtype == DType::f32) [[likely]]
    return copy_floats(from, out, dim);
  widen(dtype, from, out, dim);
}

// Updates a row of a 16-bit table by way of float32, because kernels work on float32.
inline void update_half_row(DType dtype, Kernel kernel, const StepArgs& args, uint8_t* weights, float* vectors,
                            float* number, const float* grad, uint32_t dim) {
  float* const wide = half_row(dim);
  widen(dtype, weights, wide, dim);
  kernel(args, wide, vectors, number, grad, dim);
  narrow(dtype, wide, weights, dim);
}

inline void update_row(DType dtype, Kernel kernel, const StepArgs& args, uint8_t* weights, float* vectors,
                       float* number, const float* grad, uint32_t dim) {
  if (dtype == DType::f32) [[likely]] {
    return kernel(args, reinterpret_cast<float*>(weights), vectors, number, grad, dim);
  }
  update_half_row(dtype, kernel, args, weights, vectors, number, grad, dim);
}

}  // namespace springtide
