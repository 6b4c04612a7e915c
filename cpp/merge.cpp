// Two backward passes before one push: their gradients become one set of rows (step_rows.h).
#include <algorithm>
#include <cstring>

#include "dedup.h"
#include "step_rows.h"

namespace springtide {

namespace {

// Keys of one table lie together in UniqueKeys, since a step is deduplicated table by table.
struct Run {
  size_t begin = 0, end = 0;
};

Run run_of(const UniqueKeys& unique, TableId table) {
  const auto first = std::find(unique.tables.begin(), unique.tables.end(), table);
  const auto last = std::find_if(first, unique.tables.end(), [&](TableId t) { return t != table; });
  return {static_cast<size_t>(first - unique.tables.begin()),
          static_cast<size_t>(last - unique.tables.begin())};
}

void add_row(float* to, const float* from, uint32_t dim) {
  for (uint32_t d = 0; d < dim; ++d) to[d] += from[d];
}

}  // namespace

StepRows::StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<StepRows* const> parts,
                   std::span<const std::vector<int>> groups)
    : plan_(std::move(plan)), set_(source.take()), at_(set_->occurrence_offsets()) {
  at_.clear();
  begin_.assign(plan_->features.size() + 1, 0);
  padding_at_.assign(plan_->features.size(), kPadding);
  std::vector<std::vector<uint32_t>> here(parts.size());  // index in this set of each part's unique keys
  for (size_t p = 0; p < parts.size(); ++p) here[p].assign(parts[p]->unique(), kPadding);
  KeyIndex index;
  UniqueKeys& mine = set_->unique();
  for (const auto& [table, name] : plan_->names) {
    size_t total = 0;
    for (StepRows* part : parts) total += part->unique();
    index.begin(total);
    for (size_t p = 0; p < parts.size(); ++p) {
      const UniqueKeys& theirs = parts[p]->set_->unique();
      const Run run = run_of(theirs, table);
      for (size_t i = run.begin; i < run.end; ++i) {
        const int group = groups[p].at(theirs.groups[i]);
        if (group < 0) continue;
        const auto next = static_cast<uint32_t>(mine.keys.size());
        here[p][i] = index.find_or_add(theirs.keys[i], theirs.hashes[i], next);
        if (here[p][i] == next)
          mine.add(table, theirs.keys[i], theirs.dims[i], static_cast<uint16_t>(group), theirs.hashes[i]);
      }
    }
  }
  set_->route(source, plan_->groups);
  const auto to = set_->user_offset();
  float* rows = set_->rows().data();
  float* grads = set_->grads().data();
  for (size_t p = 0; p < parts.size(); ++p) {
    RowSet& part = *parts[p]->set_;
    part.wait();
    const float* part_grads = part.grads().data();
    for (size_t i = 0; i < here[p].size(); ++i) {
      if (here[p][i] == kPadding) continue;
      const uint32_t from = part.user_offset()[i], at = to[here[p][i]], dim = part.unique().dims[i];
      std::memcpy(rows + at, part.rows().data() + from, dim * sizeof(float));
      add_row(grads + at, part_grads + from, dim);
      set_->touch(mine.groups[here[p][i]]);
    }
    set_->suspect();  // sums of finite numbers may overflow; the push looks once more
    part.drop_grads();
  }
}

}  // namespace springtide
