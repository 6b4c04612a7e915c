// Merges the gradients of two backward passes before one push (step_rows.h).
#include <algorithm>
#include <cstring>

#include "step/dedup.h"
#include "step/step_rows.h"

namespace springtide {

namespace {

void add_row(float* to, const float* from, uint32_t dim) {
  for (uint32_t d = 0; d < dim; ++d) to[d] += from[d];
}

}  // namespace

StepRows::StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<StepRows* const> parts,
                   std::span<const std::vector<int>> groups)
    : plan_(std::move(plan)), pool_(source.crew()), set_(source.take()), at_(set_->occurrence_offsets()) {
  at_.clear();
  begin_.assign(plan_->features.size() + 1, 0);
  padding_at_.assign(plan_->features.size(), kPadding);
  std::vector<std::vector<uint32_t>> here(parts.size());  // index in this set of each part's unique keys
  for (size_t p = 0; p < parts.size(); ++p) here[p].assign(parts[p]->set_->unique().room, kPadding);
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
        }
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
    set_->join_basis(part);
    const float* part_grads = part.grads().data();
    for (const auto& run : part.unique().runs)
      for (uint32_t i = run.begin; i < run.end; ++i) {
        if (here[p][i] == kPadding) continue;
        const uint32_t from = part.user_offset()[i], at = to[here[p][i]];
        std::memcpy(rows + at, part.rows().data() + from, run.dim * sizeof(float));
        add_row(grads + at, part_grads + from, run.dim);
      }
    set_->suspect();  // sums of finite numbers may overflow; the push looks once more
    part.drop_grads();
  }
  for (size_t group : touched) set_->touch(group);
}

}  // namespace springtide
