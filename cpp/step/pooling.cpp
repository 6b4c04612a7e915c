#include "step/pooling.h"

#include <cstring>

#include "base/cpu.h"
#include "base/types.h"

namespace springtide {

namespace {

// Rows are prefetched this many occurrences before they are used.
constexpr int64_t kAhead = 12;

struct Range {
  int64_t begin, end;
};

inline Range range_of(const Bag& bag, int64_t b, int64_t occurrences) {
  if (!bag.offsets) return {b * bag.per_bag, (b + 1) * bag.per_bag};
  return {bag.offsets[b], bag.closed || b + 1 < bag.bags ? bag.offsets[b + 1] : occurrences};
}

inline bool one_id_a_bag(const Bag& bag) {
  return !bag.offsets && bag.per_bag == 1 && !bag.weights && bag.pooling != Pooling::none;
}

// A vector of sixteen or eight floats; the compiler maps it to the machine's registers. Pass a vector only by reference
// or through memory, because its calling convention by value depends on the instruction set.
template <uint32_t N>
struct Lanes {
  typedef float type __attribute__((vector_size(N * sizeof(float))));
};
#if defined(__x86_64__)
using Wide = Lanes<16>::type;
using Narrow = Lanes<8>::type;
#else  // a vector wider than a register would have to be kept in memory between rows
using Wide = Lanes<4>::type;
using Narrow = Lanes<4>::type;
#endif

// Computes to += from * by, and detects non-finite sums. The function checks the sum, which is NaN or infinite if any
// term is, or if the sum overflows. Such a sum times zero is NaN.
template <typename V>
[[gnu::always_inline]] inline void add_lanes(float* to, const float* from, float by, V& poison) {
  V sum, add;
  std::memcpy(&sum, to, sizeof(V));
  std::memcpy(&add, from, sizeof(V));
  sum += add * by;
  poison += sum * 0.0f;
  std::memcpy(to, &sum, sizeof(V));
}

// D is the row length if it is known at compile time, and otherwise 0.
template <uint32_t D>
struct Row {
  using V = std::conditional_t<D != 0 && D % 16 == 0, Wide, Narrow>;
  static constexpr uint32_t kLanes = sizeof(V) / sizeof(float);
  uint32_t dim;

  [[gnu::always_inline]] uint32_t size() const { return D ? D : dim; }
  [[gnu::always_inline]] void zero(float* to) const { std::memset(to, 0, size() * sizeof(float)); }
  [[gnu::always_inline]] void copy(float* to, const float* from) const {
    std::memcpy(to, from, size() * sizeof(float));
  }
  [[gnu::always_inline]] void scale(float* to, float by) const {
    for (uint32_t d = 0; d < size(); ++d) to[d] *= by;
  }
  [[gnu::always_inline]] void add(float* to, const float* from, float by, V& poison) const {
    uint32_t d = 0;
    for (; d + kLanes <= size(); d += kLanes) add_lanes<V>(to + d, from + d, by, poison);
    if constexpr (D != 0 && D % kLanes == 0) return;
    for (; d < size(); ++d) {
      to[d] += from[d] * by;
      poison[0] += to[d] * 0.0f;
    }
  }
};

template <typename V>
[[gnu::always_inline]] inline bool is_finite(const V& poison) {
  float sum = 0;
  for (uint32_t i = 0; i < sizeof(V) / sizeof(float); ++i) sum += poison[i];
  return sum == 0;
}

template <uint32_t D>
[[gnu::always_inline]] inline void copy_rows(const float* rows, const Occurrences& ids, float* out,
                                             int64_t out_stride) {
  const Row<D> row{ids.dim};
  for (int64_t i = 0; i < ids.count; ++i) {
    if (i + kAhead < ids.count) __builtin_prefetch(rows + ids.at[i + kAhead]);
    uint32_t at = ids.at[i];
    if (at == kPadding) at = ids.padding_at;
    float* to = out + i * out_stride;
    if (at == kPadding)
      row.zero(to);
    else
      row.copy(to, rows + at);
  }
}

template <uint32_t D>
[[gnu::always_inline]] inline void sum_bag(const float* rows, const Occurrences& ids, const Bag& bag, Range range,
                                           float* to) {
  const Row<D> row{ids.dim};
  typename Row<D>::V unused = {};
  int64_t taken = 0;
  row.zero(to);
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (ids.at[i] == kPadding) continue;
    ++taken;
    row.add(to, rows + ids.at[i], bag.weights ? bag.weights[i] : 1.0f, unused);
  }
  if (bag.pooling == Pooling::mean && taken > 1) row.scale(to, 1.0f / static_cast<float>(taken));
}

[[gnu::always_inline]] inline void max_bag(const float* rows, const Occurrences& ids, Range range, float* to) {
  bool first = true;
  for (uint32_t d = 0; d < ids.dim; ++d) to[d] = 0;
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (ids.at[i] == kPadding) continue;
    const float* from = rows + ids.at[i];
    for (uint32_t d = 0; d < ids.dim; ++d) to[d] = first || from[d] > to[d] ? from[d] : to[d];
    first = false;
  }
}

template <uint32_t D>
[[gnu::always_inline]] inline void pool_as(const float* rows, const Occurrences& ids, const Bag& bag, float* out,
                                           int64_t out_stride) {
  if (bag.pooling == Pooling::none || one_id_a_bag(bag)) return copy_rows<D>(rows, ids, out, out_stride);
  for (int64_t b = 0; b < bag.bags; ++b) {
    const Range range = range_of(bag, b, ids.count);
    if (bag.pooling == Pooling::max)
      max_bag(rows, ids, range, out + b * out_stride);
    else
      sum_bag<D>(rows, ids, bag, range, out + b * out_stride);
  }
}

template <uint32_t D>
[[gnu::always_inline]] inline void spread_bag(float* grads, const float* rows, const Occurrences& ids, const Bag& bag,
                                              Range range, const float* from, float* grad_weights,
                                              typename Row<D>::V& poison) {
  const Row<D> row{ids.dim};
  float by = 1.0f;
  if (bag.pooling == Pooling::mean) {
    int64_t taken = 0;
    for (int64_t i = range.begin; i < range.end; ++i) taken += ids.at[i] != kPadding;
    if (taken > 1) by = 1.0f / static_cast<float>(taken);
  }
  for (int64_t i = range.begin; i < range.end; ++i) {
    const uint32_t at = ids.at[i];
    if (grad_weights) grad_weights[i] = 0;
    if (at == kPadding) continue;
    row.add(grads + at, from, bag.weights ? bag.weights[i] : by, poison);
    if (!grad_weights) continue;
    float dot = 0;
    for (uint32_t d = 0; d < ids.dim; ++d) dot += from[d] * rows[at + d];
    grad_weights[i] = dot;
  }
}

// In each dimension, d(out) goes to the first of the largest values, as in torch. The rows must not have changed since
// the forward pass.
template <typename V>
inline void spread_max(float* grads, const float* rows, const Occurrences& ids, Range range, const float* from,
                       V& poison) {
  for (uint32_t d = 0; d < ids.dim; ++d) {
    uint32_t best = kPadding;
    for (int64_t i = range.begin; i < range.end; ++i) {
      const uint32_t at = ids.at[i];
      if (at != kPadding && (best == kPadding || rows[at + d] > rows[best + d])) best = at;
    }
    if (best == kPadding) continue;
    grads[best + d] += from[d];
    poison[0] += grads[best + d] * 0.0f;
  }
}

template <uint32_t D>
[[gnu::always_inline]] inline bool accumulate_as(float* grads, const float* rows, const Occurrences& ids,
                                                 const Bag& bag, const float* grad_out, int64_t grad_stride,
                                                 float* grad_weights) {
  const Row<D> row{ids.dim};
  typename Row<D>::V poison = {};
  if (bag.pooling == Pooling::none || one_id_a_bag(bag)) {
    for (int64_t i = 0; i < ids.count; ++i) {
      if (i + kAhead < ids.count) {
        __builtin_prefetch(grads + ids.at[i + kAhead], 1);
        __builtin_prefetch(grad_out + (i + kAhead) * grad_stride);
      }
      if (ids.at[i] != kPadding) row.add(grads + ids.at[i], grad_out + i * grad_stride, 1.0f, poison);
    }
  } else {
    for (int64_t b = 0; b < bag.bags; ++b) {
      const Range range = range_of(bag, b, ids.count);
      const float* from = grad_out + b * grad_stride;
      if (bag.pooling == Pooling::max)
        spread_max(grads, rows, ids, range, from, poison);
      else
        spread_bag<D>(grads, rows, ids, bag, range, from, grad_weights, poison);
    }
  }
  return is_finite(poison);
}

// Either all features have rows of D floats, or D is 0.
template <uint32_t D>
[[gnu::always_inline]] inline void pool_rows(const float* rows, std::span<const Occurrences> features, int64_t first,
                                             int64_t last, float* out, int64_t out_stride) {
  for (int64_t i = first; i < last; ++i) {
    float* to = out + i * out_stride;
    for (const Occurrences& feature : features) {
      const Row<D> row{feature.dim};
      if (i + 1 < feature.count) __builtin_prefetch(rows + feature.at[i + 1]);
      const uint32_t at = feature.at[i] == kPadding ? feature.padding_at : feature.at[i];
      if (at == kPadding)
        row.zero(to);
      else
        row.copy(to, rows + at);
      to += row.size();
    }
  }
}

template <uint32_t D>
[[gnu::always_inline]] inline bool accumulate_rows(float* grads, std::span<const Occurrences> features,
                                                   const float* grad_out, int64_t grad_stride) {
  typename Row<D>::V poison = {};
  const int64_t count = features.empty() ? 0 : features[0].count;
  for (int64_t i = 0; i < count; ++i) {
    const float* from = grad_out + i * grad_stride;
    for (const Occurrences& feature : features) {
      const Row<D> row{feature.dim};
      if (i + 1 < count) __builtin_prefetch(grads + feature.at[i + 1], 1);
      if (feature.at[i] != kPadding) row.add(grads + feature.at[i], from, 1.0f, poison);
      from += row.size();
    }
  }
  return is_finite(poison);
}

uint32_t dim_of_all(std::span<const Occurrences> features) {
  for (const Occurrences& feature : features)
    if (feature.dim != features[0].dim) return 0;
  return features.empty() ? 0 : features[0].dim;
}

}  // namespace

SPRINGTIDE_CLONES
void pool(const float* rows, const Occurrences& ids, const Bag& bag, float* out, int64_t out_stride) {
  by_dim(ids.dim, [&](auto dim) __attribute__((always_inline)) { pool_as<dim()>(rows, ids, bag, out, out_stride); });
}

SPRINGTIDE_CLONES
bool accumulate(float* grads, const float* rows, const Occurrences& ids, const Bag& bag, const float* grad_out,
                int64_t grad_stride, float* grad_weights) {
  return by_dim(ids.dim, [&](auto dim) __attribute__((always_inline)) {
    return accumulate_as<dim()>(grads, rows, ids, bag, grad_out, grad_stride, grad_weights);
  });
}

SPRINGTIDE_CLONES
void pool_side_by_side(const float* rows, std::span<const Occurrences> features, int64_t first, int64_t last,
                       float* out, int64_t out_stride) {
  by_dim(dim_of_all(features), [&](auto dim) __attribute__((always_inline)) {
    pool_rows<dim()>(rows, features, first, last, out, out_stride);
  });
}

SPRINGTIDE_CLONES
bool accumulate_side_by_side(float* grads, std::span<const Occurrences> features, const float* grad_out,
                             int64_t grad_stride) {
  return by_dim(dim_of_all(features), [&](auto dim) __attribute__((always_inline)) {
    return accumulate_rows<dim()>(grads, features, grad_out, grad_stride);
  });
}

void check_bag(const Bag& bag, int64_t occurrences, const std::string& feature) {
  const auto refuse = [&](auto... why) { throw BadInput("feature '", feature, "': ", why...); };
  if (bag.pooling == Pooling::none) {
    if (bag.bags != occurrences || bag.offsets)
      refuse("without pooling there is one output row an id; got ", bag.bags, " rows for ", occurrences, " ids");
    return;
  }
  if (bag.weights && bag.pooling != Pooling::sum) refuse("per-sample weights need mode 'sum'");
  if (!bag.offsets) {
    if (bag.bags * bag.per_bag != occurrences)
      refuse(bag.bags, " bags of ", bag.per_bag, " ids do not make ", occurrences, " ids");
    return;
  }
  const int64_t entries = bag.bags + (bag.closed ? 1 : 0);
  int64_t last = 0;
  for (int64_t b = 0; b < entries; ++b) {
    const int64_t at = bag.offsets[b];
    if (b == 0 && at != 0) refuse("offsets[0] is ", at, "; it must be 0");
    if (at < last) refuse("offsets[", b, "] is ", at, ", less than ", last, " before it; offsets must not decrease");
    if (at > occurrences) refuse("offsets[", b, "] is ", at, " but there are ", occurrences, " ids");
    last = at;
  }
}

}  // namespace springtide
