#include "store/keys/call_plan.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"

namespace springtide {

CallPlan& CallPlan::of_this_thread() {
  thread_local CallPlan plan;
  return plan;
}

void CallPlan::begin() {
  for (TableId id : used_ids_) use_by_id_[id] = nullptr, dims_[id] = 0;
  used_ids_.clear();
  uses_.clear();
  sums_.clear();
}

void CallPlan::use(TableId id, const TableUse& use) {
  if (use_by_id_.size() <= id) use_by_id_.resize(size_t{id} + 1, nullptr);
  uses_.push_back(use);
  use_by_id_[id] = &uses_.back();
  dims_[id] = use.dim;
  used_ids_.push_back(id);
}

void CallPlan::name_tables(std::span<const TableId> tables, std::span<const Key> keys,
                           const std::function<TableUse(TableId)>& missing_use) {
  throw_if<BadInput>(tables.size() != keys.size(), "as many tables as keys are needed, got ", tables.size(), " and ",
                     keys.size());
  throw_if<BadInput>(keys.size() > UINT32_MAX, "one call takes at most 2^32 keys, got ", keys.size());
  const uint32_t* const dims = dims_.data();
  uint32_t differ = 0, last = tables.empty() ? 0 : dims[tables.front()];
  for (TableId id : tables) {
    uint32_t dim = dims[id];
    if (dim == 0) [[unlikely]] {
      use(id, missing_use(id));
      dim = dims[id];
      if (last == 0) last = dim;
    }
    differ |= dim ^ last;
    last = dim;
  }
  common_dim_ = differ == 0 ? last : 0;
  uniform_ = common_dim_ != 0;
  for (TableId id : used_ids_) uniform_ &= use_by_id_[id]->plain && !use_by_id_[id]->ages;
}

bool CallPlan::seems_ordered(std::span<const TableId> tables, std::span<const Key> keys) const {
  constexpr size_t kLeast = 1024, kSamples = 32;
  if (keys.size() < kLeast) return false;
  size_t changes = 0, step = (keys.size() - 1) / kSamples;
  for (size_t i = 0; i < kSamples; ++i) {
    size_t at = i * step;
    changes += stripe_of(hash_key(tables[at], keys[at])) != stripe_of(hash_key(tables[at + 1], keys[at + 1]));
  }
  return changes <= kSamples / 4;
}

std::vector<KeyRange> CallPlan::cut(std::span<const TableId> tables, std::span<const Key> keys, uint32_t parts) const {
  std::vector<KeyRange> ranges;
  size_t first = 0, floats = 0;
  for (uint32_t part = 1; part <= parts; ++part) {
    const size_t end = keys.size() * part / parts;
    ranges.push_back({first, end, floats});
    if (common_dim_ != 0) {  // in the usual case, there is no need to look at every key
      floats += common_dim_ * (end - first);
      first = end;
    }
    for (; part < parts && first < end; ++first) floats += use_by_id_[tables[first]]->dim;
  }
  return ranges;
}

std::vector<KeyRange> CallPlan::cut_at_stripes(std::span<const TableId> tables, std::span<const Key> keys,
                                               uint32_t parts) const {
  const auto stripe = [&](size_t at) { return stripe_of(hash_key(tables[at], keys[at])); };
  std::vector<KeyRange> ranges;
  for (uint32_t part = 1; part <= parts; ++part) {
    const size_t first = ranges.empty() ? 0 : ranges.back().end;
    size_t end = std::max(first, keys.size() * part / parts);
    while (end > first && end < keys.size() && stripe(end) == stripe(end - 1)) ++end;
    if (end > first) ranges.push_back({first, end, common_dim_ * first});
  }
  return ranges;
}

void GroupedKeys::fill(std::span<const TableId> tables, std::span<const Key> keys, std::span<const RowRun> runs,
                       const TableUse* const* use_by_id) {
  const size_t n = count_ = keys.size();
  if (items_.size() < n) items_.resize(n);
  std::array<uint32_t, kStripes> count{};
  uint32_t last = 0;
  bool ordered = true;
  size_t i = 0;
  for (const RowRun& run : runs) {
    float* data = run.floats;
    for (const size_t end = i + run.keys; i < end; ++i) {
      const TableUse* use = use_by_id[tables[i]];
      const uint64_t hash = hash_key(tables[i], keys[i]);
      const uint32_t stripe = stripe_of(hash);
      ++count[stripe];
      ordered &= stripe >= last;
      last = stripe;
      items_[i] = Item{hash, use, data};
      data += use->dim;
    }
  }
  uint32_t next = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    begin_[s] = next;
    end_[s] = next += count[s];
  }
  if (ordered) return;  // the caller's keys were already in slot order
  std::swap(items_, unordered_);
  if (items_.size() < n) items_.resize(n);
  std::array<uint32_t, kStripes> at = begin_;
  for (size_t k = 0; k < n; ++k) items_[at[stripe_of(unordered_[k].hash)]++] = unordered_[k];
}

void CallPlan::sum_duplicates() {
  size_t floats = 0;
  for (const Item& item : items()) floats += item.use->dim;
  sums_.reserve(floats);  // reserve memory, so that pointers into `sums_` stay valid
  for (uint32_t s = 0; s < kStripes; ++s) sum_stripe(s);
}

void CallPlan::sum_stripe(uint32_t number) {
  const std::span<Item> items = grouped_.stripe(number);
  const auto n = static_cast<uint32_t>(items.size());
  if (n < 2) return;
  size_t mask = std::bit_ceil(size_t{n} * 2) - 1;
  places_.assign(mask + 1, UINT32_MAX);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    Item item = items[i];
    size_t at = item.hash & mask;
    while (places_[at] != UINT32_MAX && (items[places_[at]].hash != item.hash || items[places_[at]].use != item.use)) {
      at = (at + 1) & mask;
    }
    if (places_[at] == UINT32_MAX) {
      places_[at] = kept;
      items[kept++] = item;
      continue;
    }
    Item& first = items[places_[at]];
    uint32_t dim = item.use->dim;
    bool summed = first.data >= sums_.data() && first.data < sums_.data() + sums_.size();
    if (!summed) {
      sums_.insert(sums_.end(), first.data, first.data + dim);
      first.data = sums_.data() + sums_.size() - dim;
    }
    for (uint32_t k = 0; k < dim; ++k) first.data[k] += item.data[k];
  }
  grouped_.shorten(number, kept);
}

}  // namespace springtide
