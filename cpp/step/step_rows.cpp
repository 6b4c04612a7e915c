#include "step/step_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/hash.h"
#include "store/kernels/finite.h"

namespace springtide {

namespace {

// Ids are hashed this many ids before they are looked up, so that multiplications and cache misses overlap.
constexpr int64_t kBlock = 32;
constexpr int64_t kRowsAShare = 64;    // rows per share, if several threads pool a batch
constexpr size_t kWorthWaking = 4096;  // for fewer ids than this, one thread alone is faster

[[noreturn]] void out_of_range(const FeatureSpec& feature, int64_t position, Key id) {
  throw BadInput("feature '", feature.name, "': id ", id, " at position ", position, " is out of range; wanted [0, ",
                 feature.rows, "). A table without a row count (st.EmbeddingBag) takes any 64-bit id");
}

}  // namespace

StepPlan::StepPlan(std::vector<FeatureSpec> specs, bool wire) : features(std::move(specs)), wire_order(wire) {
  for (uint32_t f = 0; f < features.size(); ++f) {
    const FeatureSpec& feature = features[f];
    if (feature.dim == 0) throw BadInput("feature '", feature.name, "': dim is 0; it must be at least 1");
    groups = std::max<size_t>(groups, feature.group + 1u);
    const auto same =
        std::find_if(names.begin(), names.end(), [&](const auto& known) { return known.first == feature.table; });
    table_of.push_back(static_cast<uint32_t>(same - names.begin()));
    if (same == names.end()) {
      names.emplace_back(feature.table, feature.name);
      tables.push_back({f});
      continue;
    }
    const FeatureSpec& first = features[tables[table_of[f]].front()];
    throw_if<BadInput>(first.dim != feature.dim || first.group != feature.group, "features '", first.name, "' and '",
                       feature.name, "' share a table but not its dim and parameter");
    tables[table_of[f]].push_back(f);
  }
}

StepRows::StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<const FeatureIds> ids)
    : plan_(std::move(plan)), pool_(source.crew()), set_(source.take()), at_(set_->occurrence_offsets()) {
  if (ids.size() != plan_->features.size())
    throw BadInput("ids of ", ids.size(), " features for a plan of ", plan_->features.size());
  dedup(ids);
  for (size_t f = 0; f < ids.size(); ++f) {
    if (padding_at_[f] != kPadding && !trains(f, padding_at_[f])) set_->read_only(padding_at_[f]);
  }
  set_->route(source, plan_->groups, plan_->wire_order);
  const auto user_offset = set_->user_offset();
  for_each(ids.size(), [&](uint32_t f) {
    for (size_t i = begin_[f]; i < begin_[f + 1]; ++i) at_[i] = at_[i] == kPadding ? kPadding : user_offset[at_[i]];
  });
  for (uint32_t& at : padding_at_) at = at == kPadding ? kPadding : user_offset[at];
}

void StepRows::for_each(size_t shares, const std::function<void(uint32_t)>& work) {
  if (at_.size() >= kWorthWaking) return pool_->run(static_cast<uint32_t>(shares), work);
  for (uint32_t i = 0; i < shares; ++i) work(i);
}

void StepRows::dedup(std::span<const FeatureIds> ids) {
  begin_.assign(ids.size() + 1, 0);
  for (size_t f = 0; f < ids.size(); ++f) begin_[f + 1] = begin_[f] + static_cast<size_t>(ids[f].count);
  if (begin_.back() >= kPadding / 2) throw BadInput("a batch has more than 2^31 ids: use smaller batches");
  at_.resize(begin_.back());
  padding_at_.assign(ids.size(), kPadding);
  UniqueKeys& unique = set_->unique();
  for (const auto& features : plan_->tables) {
    size_t most = 0;
    for (uint32_t f : features) most += static_cast<size_t>(ids[f].count) + plan_->features[f].pull_padding;
    const FeatureSpec& first = plan_->features[features.front()];
    unique.add_run(first.table, first.dim, first.group, most);
  }
  for_each(plan_->tables.size(), [&](uint32_t t) {
    UniqueKeys::Run run = unique.runs[t];
    const uint32_t room = (t + 1 < unique.runs.size() ? unique.runs[t + 1].begin : unique.room) - run.begin;
    thread_local KeyIndex shared;
    const KeyIndex::Filling index = shared.begin(room);
    for (uint32_t f : plan_->tables[t]) dedup_feature(f, ids[f], index, run);
    unique.runs[t].end = run.end;
  });
}

void StepRows::dedup_feature(size_t f, const FeatureIds& ids, const KeyIndex::Filling& filling, UniqueKeys::Run& run) {
  const FeatureSpec& feature = plan_->features[f];
  const KeyIndex::Filling index = filling;
  Key* const unique_keys = set_->unique().keys.data();
  uint64_t* const unique_hashes = set_->unique().hashes.data();
  uint32_t* const at = at_.data() + begin_[f];
  uint32_t end = run.end;
  const auto look_up = [&](Key key, uint64_t hash) {
    const uint32_t found = index.find_or_add(key, hash, end);
    unique_keys[end] = key;  // the next key overwrites this one, unless it is new
    unique_hashes[end] = hash;
    end += found == end;
    return found;
  };
  Key keys[kBlock];
  uint64_t hashes[kBlock];
  for (int64_t begin = 0; begin < ids.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, ids.count - begin);
    uint64_t outside = 0;
    for (int64_t i = 0; i < n; ++i) {
      keys[i] = ids.ids[(begin + i) * ids.stride];
      hashes[i] = hash_key(feature.table, keys[i]);
      index.prefetch(hashes[i]);
      outside |= static_cast<uint64_t>(keys[i]) >= feature.rows;
    }
    if (feature.rows && outside)
      for (int64_t i = 0; i < n; ++i)
        if (static_cast<uint64_t>(keys[i]) >= feature.rows) out_of_range(feature, begin + i, keys[i]);
    if (!feature.has_padding)
      for (int64_t i = 0; i < n; ++i) at[begin + i] = look_up(keys[i], hashes[i]);
    else
      for (int64_t i = 0; i < n; ++i)
        at[begin + i] = keys[i] == feature.padding ? kPadding : look_up(keys[i], hashes[i]);
  }
  if (feature.has_padding && feature.pull_padding)
    padding_at_[f] = look_up(feature.padding, hash_key(feature.table, feature.padding));
  run.end = end;
}

// Features of one table may have different padding ids, so the padding row of one may be trained by another.
bool StepRows::trains(size_t f, uint32_t unique) const {
  const FeatureSpec& own = plan_->features[f];
  for (uint32_t g : plan_->tables[plan_->table_of[f]]) {
    const FeatureSpec& other = plan_->features[g];
    if (other.has_padding && other.padding == own.padding) continue;
    const auto begin = at_.begin() + static_cast<ptrdiff_t>(begin_[g]);
    const auto end = at_.begin() + static_cast<ptrdiff_t>(begin_[g + 1]);
    if (std::find(begin, end, unique) != end) return true;
  }
  return false;
}

Occurrences StepRows::occurrences(size_t feature) const {
  if (feature >= plan_->features.size())
    throw BadInput("feature ", feature, " of a step with ", plan_->features.size());
  return {at_.data() + begin_[feature], static_cast<int64_t>(begin_[feature + 1] - begin_[feature]),
          plan_->features[feature].dim, padding_at_[feature]};
}

void StepRows::pool(std::span<const PoolItem> items) {
  for (const PoolItem& item : items) {
    const Occurrences ids = occurrences(item.feature);
    check_bag(item.bag, ids.count, plan_->features[item.feature].name);
  }
  set_->wait();
  const float* rows = set_->rows().data();
  for_each(items.size(), [&](uint32_t i) {
    const PoolItem& item = items[i];
    springtide::pool(rows, occurrences(item.feature), item.bag, item.out, item.stride);
  });
}

void StepRows::accumulate(std::span<const GradItem> items) {
  std::vector<std::vector<const GradItem*>> by_table(plan_->tables.size());
  for (const GradItem& item : items) {
    const Occurrences ids = occurrences(item.feature);
    check_bag(item.bag, ids.count, plan_->features[item.feature].name);
    by_table[plan_->table_of[item.feature]].push_back(&item);
    set_->touch(plan_->features[item.feature].group);
  }
  set_->wait();
  float* grads = set_->grads().data();
  const float* rows = set_->rows().data();
  std::atomic<bool> finite = true;
  for_each(by_table.size(), [&](uint32_t t) {
    for (const GradItem* item : by_table[t])
      if (!springtide::accumulate(grads, rows, occurrences(item->feature), item->bag, item->grad, item->stride,
                                  item->grad_weights))
        finite = false;
  });
  if (!finite) set_->suspect();
}

std::vector<Occurrences> StepRows::columns(int64_t bags) const {
  std::vector<Occurrences> features;
  for (size_t f = 0; f < plan_->features.size(); ++f) {
    features.push_back(occurrences(f));
    check_bag({Pooling::sum, bags}, features[f].count, plan_->features[f].name);
  }
  return features;
}

void StepRows::pool_columns(int64_t bags, float* out, int64_t stride) {
  const std::vector<Occurrences> features = columns(bags);
  set_->wait();
  const float* rows = set_->rows().data();
  for_each(static_cast<size_t>((bags + kRowsAShare - 1) / kRowsAShare), [&](uint32_t share) {
    const int64_t first = share * kRowsAShare;
    pool_side_by_side(rows, features, first, std::min(first + kRowsAShare, bags), out, stride);
  });
}

// Features of one table add to the same rows. Threads therefore divide the features only if each feature has its own
// table.
void StepRows::accumulate_columns(int64_t bags, const float* grad, int64_t stride) {
  const std::vector<Occurrences> features = columns(bags);
  for (const FeatureSpec& feature : plan_->features) set_->touch(feature.group);
  set_->wait();
  float* grads = set_->grads().data();
  const size_t shares =
      plan_->tables.size() == features.size() ? std::min<size_t>(pool_->threads(), features.size()) : 1;
  std::atomic<bool> finite = true;
  for_each(shares, [&](uint32_t share) {
    const size_t first = share * features.size() / shares, last = (share + 1) * features.size() / shares;
    const float* from = grad;
    for (size_t f = 0; f < first; ++f) from += features[f].dim;
    if (!accumulate_side_by_side(grads, std::span(features).subspan(first, last - first), from, stride)) finite = false;
  });
  if (!finite) set_->suspect();
}

void StepRows::write_keys(int32_t* keys) {
  for_each(plan_->features.size(), [&](uint32_t f) {
    const uint32_t dim = plan_->features[f].dim, padding = padding_at_[f];
    const uint32_t unread = padding == kPadding ? 1 : padding / dim * 2 + 1;
    for (size_t i = begin_[f]; i < begin_[f + 1]; ++i) {
      const bool skipped = at_[i] == kPadding;
      keys[i] = static_cast<int32_t>(skipped ? unread : at_[i] / dim * 2);
    }
  });
}

bool StepRows::finite() {
  const std::span<const float> grads = set_->grads();
  return all_finite(grads.data(), grads.size());
}

// Merges the gradients of two backward passes before one push (step_rows.h).
StepRows::StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<StepRows* const> parts,
                   std::span<const std::vector<int>> groups)
    : plan_(std::move(plan)), pool_(source.crew()), set_(source.take()), at_(set_->occurrence_offsets()) {
  at_.clear();
  begin_.assign(plan_->features.size() + 1, 0);
  padding_at_.assign(plan_->features.size(), kPadding);
  std::vector<std::vector<uint32_t>> here(parts.size());  // by part: index in this set of each unique key
  for (size_t p = 0; p < parts.size(); ++p) here[p].assign(parts[p]->set_->unique().room, kPadding);
  std::vector<uint8_t> trained;  // by unique index in this set
  std::vector<size_t> touched;
  KeyIndex index;
  UniqueKeys& mine = set_->unique();
  for (const auto& [table, name] : plan_->names) {
    size_t most = 0;
    for (StepRows* part : parts)
      for (const auto& run : part->set_->unique().runs) most += run.table == table ? run.size() : 0;
    const KeyIndex::Filling filling = index.begin(most);
    UniqueKeys::Run* into = nullptr;
    for (size_t p = 0; p < parts.size(); ++p) {
      const UniqueKeys& theirs = parts[p]->set_->unique();
      for (const auto& run : theirs.runs) {
        const int group = groups[p].at(run.group);
        if (run.table != table || group < 0) continue;
        if (!into) mine.add_run(table, run.dim, static_cast<uint16_t>(group), most);
        into = &mine.runs.back();
        touched.push_back(static_cast<size_t>(group));
        for (uint32_t i = run.begin; i < run.end; ++i) {
          here[p][i] = filling.find_or_add(theirs.keys[i], theirs.hashes[i], into->end);
          if (here[p][i] == into->end) mine.add(*into, theirs.keys[i], theirs.hashes[i]);
          trained.resize(mine.room);
          trained[here[p][i]] |= !parts[p]->set_->is_read_only(i);
        }
      }
    }
  }
  for (const auto& run : mine.runs)
    for (uint32_t i = run.begin; i < run.end; ++i)
      if (!trained[i]) set_->read_only(i);
  set_->route(source, plan_->groups);
  const auto to = set_->user_offset();
  float* rows = set_->rows().data();
  float* grads = set_->grads().data();
  for (size_t p = 0; p < parts.size(); ++p) {
    RowSet& part = *parts[p]->set_;
    part.wait();
    set_->join_basis(part);
    const float* part_grads = part.grads().data();
    for (const auto& run : part.unique().runs)
      for (uint32_t i = run.begin; i < run.end; ++i) {
        if (here[p][i] == kPadding) continue;
        const uint32_t from = part.user_offset()[i], at = to[here[p][i]];
        std::memcpy(rows + at, part.rows().data() + from, run.dim * sizeof(float));
        for (uint32_t d = 0; d < run.dim; ++d) grads[at + d] += part_grads[from + d];
      }
    set_->suspect();  // a sum of finite numbers may overflow, so the push checks again
    part.drop_grads();
  }
  for (size_t group : touched) set_->touch(group);
}

// There are two groups, of which the second is empty, so that rows() uses the caller's order instead of the wire's.
DenseRows::DenseRows(RowSource& source, std::span<const TableId> tables, std::span<const Key> keys,
                     std::span<const uint32_t> dims)
    : set_(source.take()) {
  throw_if<BadInput>(tables.size() != keys.size() || dims.size() != keys.size(), tables.size(), " tables, ",
                     keys.size(), " keys and ", dims.size(), " dims; there must be as many of each");
  UniqueKeys& unique = set_->unique();
  for (size_t begin = 0, end = 0; begin < keys.size(); begin = end) {
    while (end < keys.size() && tables[end] == tables[begin] && dims[end] == dims[begin]) ++end;
    unique.add_run(tables[begin], dims[begin], 0, end - begin);
    for (size_t i = begin; i < end; ++i) unique.add(unique.runs.back(), keys[i], hash_key(tables[i], keys[i]));
  }
  set_->route(source, 2);
  set_->follow(source.weak_from_this());
}

Part DenseRows::push_part() {
  set_->touch(0);
  set_->touch(1);
  return set_->push_part({}, true);
}

}  // namespace springtide
