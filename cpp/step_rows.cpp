#include "step_rows.h"

#include <algorithm>

#include "dedup.h"

namespace springtide {

namespace {

// Ids are hashed this many ahead of the probe, so that multiplications and cache misses overlap.
constexpr int64_t kBlock = 32;

KeyIndex& key_index() {
  thread_local KeyIndex index;
  return index;
}

[[noreturn]] void out_of_range(const FeatureSpec& feature, int64_t position, Key id) {
  throw BadInput("feature '" + feature.name + "': id " + std::to_string(id) + " at position " +
                 std::to_string(position) + " is out of range; wanted [0, " + std::to_string(feature.rows) +
                 "). A table without a row count (st.EmbeddingBag) takes any 64-bit id");
}

}  // namespace

StepPlan::StepPlan(std::vector<FeatureSpec> specs) : features(std::move(specs)) {
  std::vector<uint32_t> first;  // feature that first used each table
  for (uint32_t f = 0; f < features.size(); ++f) {
    const FeatureSpec& feature = features[f];
    if (feature.dim == 0) throw BadInput("feature '" + feature.name + "': dim is 0; it must be at least 1");
    groups = std::max<size_t>(groups, feature.group + 1u);
    const auto same = std::find_if(first.begin(), first.end(),
                                   [&](uint32_t g) { return features[g].table == feature.table; });
    if (same == first.end()) {
      first.push_back(f);
      names.emplace_back(feature.table, feature.name);
    } else if (features[*same].dim != feature.dim || features[*same].group != feature.group) {
      throw BadInput("features '" + features[*same].name + "' and '" + feature.name +
                     "' share a table but not its dim and parameter");
    }
  }
  for (uint32_t f : first)
    for (uint32_t g = 0; g < features.size(); ++g)
      if (features[g].table == features[f].table) by_table.push_back(g);
}

StepRows::StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<const FeatureIds> ids)
    : plan_(std::move(plan)), set_(source.take()), at_(set_->occurrence_offsets()) {
  if (ids.size() != plan_->features.size())
    throw BadInput("ids of " + std::to_string(ids.size()) + " features for a plan of " +
                   std::to_string(plan_->features.size()));
  dedup(ids);
  set_->route(source, plan_->groups);
  const auto user_offset = set_->user_offset();
  for (uint32_t& at : at_) at = at == kPadding ? kPadding : user_offset[at];
  for (uint32_t& at : padding_at_) at = at == kPadding ? kPadding : user_offset[at];
}

void StepRows::dedup(std::span<const FeatureIds> ids) {
  begin_.assign(ids.size() + 1, 0);
  for (size_t f = 0; f < ids.size(); ++f) begin_[f + 1] = begin_[f] + static_cast<size_t>(ids[f].count);
  at_.resize(begin_.back());
  padding_at_.assign(ids.size(), kPadding);
  const auto& order = plan_->by_table;
  for (size_t i = 0; i < order.size();) {
    size_t end = i, total = 0;
    for (; end < order.size() && plan_->features[order[end]].table == plan_->features[order[i]].table; ++end)
      total += static_cast<size_t>(ids[order[end]].count) + plan_->features[order[end]].pull_padding;
    key_index().begin(total);
    UniqueKeys& unique = set_->unique();
    unique.reserve(unique.count + total);
    const FeatureSpec& first = plan_->features[order[i]];
    unique.begin_run(first.table, first.dim, first.group);
    for (; i < end; ++i) dedup_feature(order[i], ids[order[i]]);
    unique.end_run();
  }
}

void StepRows::dedup_feature(size_t f, const FeatureIds& ids) {
  const FeatureSpec& feature = plan_->features[f];
  KeyIndex& index = key_index();
  UniqueKeys& unique = set_->unique();
  uint32_t* at = at_.data() + begin_[f];
  const auto look_up = [&](Key key, uint64_t hash) {
    const uint32_t found = index.find_or_add(key, hash, unique.count);
    if (found == unique.count) unique.add(key, hash);
    return found;
  };
  uint64_t hashes[kBlock];
  Key keys[kBlock];
  for (int64_t begin = 0; begin < ids.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, ids.count - begin);
    uint64_t outside = 0;
    for (int64_t i = 0; i < n; ++i) {
      keys[i] = ids.ids[(begin + i) * ids.stride];
      hashes[i] = hash_key(feature.table, keys[i]);
      outside |= static_cast<uint64_t>(keys[i]) >= feature.rows;
    }
    if (feature.rows && outside)
      for (int64_t i = 0; i < n; ++i)
        if (static_cast<uint64_t>(keys[i]) >= feature.rows) out_of_range(feature, begin + i, keys[i]);
    for (int64_t i = 0; i < n; ++i)
      at[begin + i] =
          feature.has_padding && keys[i] == feature.padding ? kPadding : look_up(keys[i], hashes[i]);
  }
  if (feature.has_padding && feature.pull_padding)
    padding_at_[f] = look_up(feature.padding, hash_key(feature.table, feature.padding));
}

Occurrences StepRows::occurrences(size_t feature) const {
  if (feature >= plan_->features.size())
    throw BadInput("feature " + std::to_string(feature) + " of a step with " +
                   std::to_string(plan_->features.size()));
  return {at_.data() + begin_[feature], static_cast<int64_t>(begin_[feature + 1] - begin_[feature]),
          plan_->features[feature].dim, padding_at_[feature]};
}

void StepRows::pool(size_t feature, const Bag& bag, float* out, int64_t out_stride) {
  const Occurrences ids = occurrences(feature);
  check_bag(bag, ids.count, plan_->features[feature].name);
  set_->wait();
  springtide::pool(set_->rows().data(), ids, bag, out, out_stride);
}

void StepRows::accumulate(size_t feature, const Bag& bag, const float* grad_out, int64_t grad_stride,
                          float* grad_weights) {
  const Occurrences ids = occurrences(feature);
  check_bag(bag, ids.count, plan_->features[feature].name);
  set_->wait();
  set_->touch(plan_->features[feature].group);
  if (!springtide::accumulate(set_->grads().data(), set_->rows().data(), ids, bag, grad_out, grad_stride,
                              grad_weights))
    set_->suspect();
}

}  // namespace springtide
