// Pools rows into bags, and distributes the bags' gradients back to the rows, in the order of the occurrences.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace springtide {

enum class Pooling : uint8_t { none = 0, sum = 1, mean = 2, max = 3 };

// How the occurrences of one feature are combined into output rows.
struct Bag {
  Pooling pooling = Pooling::sum;
  int64_t bags = 0;
  int64_t per_bag = 1;               // ids per bag if there are no offsets
  const int64_t* offsets = nullptr;  // start of each bag, as in nn.EmbeddingBag
  bool closed = false;               // true if offsets has one more entry, which is the end of the last bag
  const float* weights = nullptr;    // one per occurrence, sum only
};

constexpr uint32_t kPadding = ~0u;  // used in place of a row's offset if the occurrence is ignored

// Where the rows of one feature's occurrences are, in floats from the start of all rows.
struct Occurrences {
  const uint32_t* at = nullptr;
  int64_t count = 0;
  uint32_t dim = 0;
  // the padding row, which is read but never trained (nn.Embedding); kPadding if there is none
  uint32_t padding_at = kPadding;
};

// Throws BadInput unless the bags are in order and within the occurrences. The message names `feature`.
void check_bag(const Bag& bag, int64_t occurrences, const std::string& feature);

void pool(const float* rows, const Occurrences& ids, const Bag& bag, float* out, int64_t out_stride);

// Adds d(out) to `grads`. Writes d(weights), unless it is null. Returns false if a sum is not finite.
bool accumulate(float* grads, const float* rows, const Occurrences& ids, const Bag& bag, const float* grad_out,
                int64_t grad_stride, float* grad_weights);

// Pools features with one id per bag into outputs side by side: row i of `out` has row i of each feature. The loop goes
// row by row, so that `out` is written, and `grad_out` read, in the order of memory.
void pool_side_by_side(const float* rows, std::span<const Occurrences> features, int64_t first, int64_t last,
                       float* out, int64_t out_stride);
bool accumulate_side_by_side(float* grads, std::span<const Occurrences> features, const float* grad_out,
                             int64_t grad_stride);

}  // namespace springtide
