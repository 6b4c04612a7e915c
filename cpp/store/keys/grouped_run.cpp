#include "store/keys/grouped_run.h"

#include "base/hash.h"

namespace springtide {

void GroupedRun::fill(std::span<const TableId> tables, std::span<const Key> keys, float* data,
                      const TableUse* const* use_by_id) {
  const size_t n = keys.size();
  if (items_.size() < n) items_.resize(n);
  std::array<uint32_t, kStripes> count{};
  uint32_t last = 0;
  bool ordered = true;
  for (size_t i = 0; i < n; ++i) {
    const TableUse* use = use_by_id[tables[i]];
    const uint64_t hash = hash_key(tables[i], keys[i]);
    const uint32_t stripe = stripe_of(hash);
    ++count[stripe];
    ordered &= stripe >= last;
    last = stripe;
    items_[i] = Item{hash, use, data};
    data += use->dim;
  }
  begin_[0] = 0;
  for (uint32_t s = 0; s < kStripes; ++s) begin_[s + 1] = begin_[s] + count[s];
  if (ordered) return;
  std::swap(items_, unordered_);
  if (items_.size() < n) items_.resize(n);
  std::array<uint32_t, kStripes> next;
  for (uint32_t s = 0; s < kStripes; ++s) next[s] = begin_[s];
  for (size_t i = 0; i < n; ++i) items_[next[stripe_of(unordered_[i].hash)]++] = unordered_[i];
}

}  // namespace springtide
