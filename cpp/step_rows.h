// One batch's rows: which unique keys it needs, where they lie, how they pool, how gradients come back
// together. In: ids per feature. Out: pooled rows; then one gradient per unique key. Tables are reached
// through backend.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend.h"

namespace springtide {

// Ids of one feature. Features may share a table; then they share unique rows.
struct FeatureIds {
  TableId table = 0;
  uint32_t dim = 0;
  const Key* ids = nullptr;
  int64_t count = 0;
  int64_t stride = 1;  // in ids: a column of a [batch, features] tensor needs no copy
  uint64_t rows = 0;   // ids must lie in [0, rows); 0: open-ended
};

enum class Pooling : uint8_t { none = 0, sum = 1, mean = 2, max = 3 };

// How occurrences of one feature become output rows. offsets empty: one id an output row.
struct Bag {
  Pooling pooling = Pooling::sum;
  std::span<const int64_t> offsets;  // start of each bag, as in nn.EmbeddingBag (no closing entry)
  std::span<const float> weights;    // per-sample weights, sum only
  bool has_padding = false;
  Key padding = 0;  // its occurrences take no part
};

class StepRows {
 public:
  // Copies nothing it need not: ids are read during construction only.
  StepRows(Backend& backend, std::span<const FeatureIds> features);

  void pull(const PullMeta& meta);  // starts; rows() is valid after wait()
  void wait();

  size_t unique() const;
  const Routed& routed() const;
  std::span<float> rows();   // unique rows, at routed().row_offset
  std::span<float> grads();  // same layout; zero until accumulate()

  // Writes one output row per bag (or id) at out + i * out_stride floats.
  void pool(size_t feature, const Bag& bag, float* out, int64_t out_stride);
  // Adds d(out) into grads(). Same bag as in pool(). Optionally d(weights) for per-sample weights.
  void accumulate(size_t feature, const Bag& bag, const float* grad_out, int64_t grad_stride,
                  float* grad_weights);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace springtide
