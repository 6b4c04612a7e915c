#include "bench/probe_loop.h"

#include <string>

#include "base/half.h"
#include "base/hash.h"
#include "base/prefetch.h"
#include "store/keys/table.h"

namespace springtide {

namespace {
constexpr size_t kAhead = 16;  // as in the store
constexpr size_t kRing = 2 * kAhead;
}  // namespace

ProbeLoop::ProbeLoop(const TableSpec& spec, uint64_t rows, uint64_t seed)
    : spec_(spec),
      rows_(rows),
      optimizer_(spec.optim, spec.dim, spec.name),
      weight_bytes_(spec.dim * bytes_of(spec.dtype)),
      vectors_at_((weight_bytes_ + 3) / 4 * 4),
      number_at_(vectors_at_ + optimizer_.vector_floats() * 4),
      row_bytes_(number_at_ + (optimizer_.has_number() ? 4 : 0)),
      cells_arena_("probe cells", rows * sizeof(Cell)),
      rows_arena_("probe rows", rows * row_bytes_ + kLine),
      cells_(reinterpret_cast<Cell*>(cells_arena_.base())),
      base_(rows_arena_.base()) {
  if (rows == 0 || cells_arena_.capacity() < rows * sizeof(Cell) || rows_arena_.capacity() < rows * row_bytes_) {
    throw BadInput("probe loop: cannot have " + std::to_string(rows) + " rows here");
  }
  for (uint64_t i = 0; i < rows; ++i) cells_[i] = {i, i};
  for (uint64_t i = rows - 1; i > 0; --i) std::swap(cells_[i].row, cells_[mix64(seed + i) % (i + 1)].row);
  RowInit init({InitKind::uniform, -0.1f, 0.1f}, spec.dim, seed);
  std::vector<float> weights(spec.dim);
  for (uint64_t i = 0; i < rows; ++i) {
    init.fill(i, weights.data(), spec.dim);
    narrow(spec.dtype, weights.data(), base_ + i * row_bytes_, spec.dim);
    uint8_t* row = base_ + i * row_bytes_;
    optimizer_.reset(reinterpret_cast<float*>(row + vectors_at_), reinterpret_cast<float*>(row + number_at_));
  }
}

void ProbeLoop::check(std::span<const int64_t> places) const {
  for (int64_t place : places) {
    if (static_cast<uint64_t>(place) >= rows_) {
      throw BadInput("probe loop: place " + std::to_string(place) + " is not one of " + std::to_string(rows_));
    }
  }
}

void ProbeLoop::gather(std::span<const int64_t> places, float* out) const {
  check(places);
  const uint8_t* ring[kRing];
  size_t n = places.size();
  for (size_t i = 0; i < n + 2 * kAhead; ++i) {
    if (i < n) prefetch_read(cells_ + places[i]);
    if (size_t j = i - kAhead; j < n) {
      ring[j % kRing] = base_ + cells_[places[j]].row * row_bytes_;
      prefetch_lines(ring[j % kRing], weight_bytes_);
    }
    if (size_t k = i - 2 * kAhead; k < n) {
      read_row(spec_.dtype, ring[k % kRing], out, spec_.dim);
      out += spec_.dim;
    }
  }
}

void ProbeLoop::scatter(std::span<const int64_t> places, const float* grads, const Hyper& hyper) {
  check(places);
  StepArgs args = optimizer_.prepare(hyper);
  Kernel kernel = optimizer_.kernel();
  uint8_t* ring[kRing];
  size_t n = places.size();
  for (size_t i = 0; i < n + 2 * kAhead; ++i) {
    if (i < n) prefetch_read(cells_ + places[i]);
    if (size_t j = i - kAhead; j < n) {
      ring[j % kRing] = base_ + cells_[places[j]].row * row_bytes_;
      prefetch_lines_to_write(ring[j % kRing], row_bytes_);
    }
    if (size_t k = i - 2 * kAhead; k < n) {
      uint8_t* row = ring[k % kRing];
      update_row(spec_.dtype, kernel, args, row, reinterpret_cast<float*>(row + vectors_at_),
                 reinterpret_cast<float*>(row + number_at_), grads, spec_.dim);
      grads += spec_.dim;
    }
  }
}

}  // namespace springtide
