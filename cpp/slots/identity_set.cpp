#include "slots/identity_set.h"

#include <algorithm>
#include <tuple>

#include "base/hash.h"

namespace springtide {

namespace {

Verdict verdict_of(IdentitySet::Has has) {
  if (has == IdentitySet::Has::none) return Verdict::apply;
  return has == IdentitySet::Has::all ? Verdict::had : Verdict::torn;
}

void add_all(IdentitySet& set, std::span<const SampleSpan> spans) {
  for (const SampleSpan& span : spans) set.add(span);
}

// Position in the order of all samples: the shard, and the sample in the shard.
using Place = std::tuple<uint32_t, uint64_t>;

Place begin_of(const SampleSpan& span) { return {span.shard, span.first}; }
Place end_of(const SampleSpan& span) { return {span.shard, span.whole_tail ? kShardEnd : span.end}; }
Place begin_of(const SampleRun& run) { return {run.first_shard, run.first}; }
Place end_of(const SampleRun& run) { return {run.last_shard, run.end}; }

// True if no sample lies between `end` and `begin`.
bool side_by_side(const Place& end, const Place& begin) {
  if (end == begin) return true;
  const auto [shard, sample] = end;
  return sample == kShardEnd && shard != UINT32_MAX && begin == Place{shard + 1, 0};
}

uint64_t print_of(const SampleRun& run) {
  return mix64(mix64(mix64((uint64_t{run.first_shard} << 32 | run.last_shard) + 1) + run.first) + run.end);
}

SampleSpan span_of(const BatchRange& batch) {
  const SampleSpan span{batch.shard, batch.first, batch.first + batch.count,
                        batch.shard_samples != 0 && batch.first + batch.count == batch.shard_samples};
  throw_if<BadInput>(batch.count >= kShardEnd || batch.first >= kShardEnd - batch.count, "a batch of ", batch.count,
                     " samples from sample ", batch.first, " of shard ", batch.shard, " ends nowhere");
  if (batch.shard_samples != 0 && span.end > batch.shard_samples) {
    throw BadInput("a push names ", name_of(span), ", which has ", batch.shard_samples);
  }
  return span;
}

}  // namespace

std::string name_of(const SampleSpan& span) {
  return "samples " + std::to_string(span.first) + " to " + std::to_string(span.end) + " of shard " +
         std::to_string(span.shard);
}

std::vector<SampleSpan> spans_of(std::span<const BatchRange> batches) {
  std::vector<SampleSpan> spans;
  spans.reserve(batches.size());
  for (const BatchRange& batch : batches) {
    if (const SampleSpan span = span_of(batch); batch.count != 0) spans.push_back(span);
  }
  std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return begin_of(a) < begin_of(b); });
  size_t kept = 0;
  for (const SampleSpan& span : spans) {
    if (kept != 0 && begin_of(span) < end_of(spans[kept - 1])) {
      throw BadInput("a push names ", name_of(spans[kept - 1]), " and ", name_of(span),
                     ": batches of one push must not overlap");
    }
    if (kept != 0 && begin_of(span) == end_of(spans[kept - 1])) {
      spans[kept - 1].end = span.end;
      spans[kept - 1].whole_tail = span.whole_tail;
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
  return spans;
}

IdentitySet::IdentitySet(std::vector<SampleRun> runs) : runs_(std::move(runs)) {
  for (size_t i = 0; i < runs_.size(); ++i) {
    const SampleRun& run = runs_[i];
    const bool after =
        i == 0 || (end_of(runs_[i - 1]) < begin_of(run) && !side_by_side(end_of(runs_[i - 1]), begin_of(run)));
    throw_if<BadInput>(!after || end_of(run) <= begin_of(run) || run.end == 0, "applied batches: not in order");
    fingerprint_ += print_of(run);
  }
}

size_t IdentitySet::find(uint32_t shard, uint64_t first) const {
  // Runs do not overlap, so their ends are in order too.
  const auto ends_before = [](const SampleRun& have, const Place& wanted) { return end_of(have) <= wanted; };
  const Place wanted{shard, first};
  // Current batches are near the end of the set. The search starts there and doubles its steps, so that old runs are
  // not read.
  size_t low = 0, high = runs_.size();
  for (size_t step = 1; high > 0; step *= 2) {
    const size_t at = high > step ? high - step : 0;
    if (ends_before(runs_[at], wanted)) {
      low = at + 1;
      break;
    }
    high = at;
  }
  const auto begin = runs_.begin();
  return static_cast<size_t>(
      std::lower_bound(begin + static_cast<ptrdiff_t>(low), begin + static_cast<ptrdiff_t>(high), wanted, ends_before) -
      begin);
}

IdentitySet::Has IdentitySet::has(const SampleSpan& span) const {
  const size_t at = find(span.shard, span.first);
  if (at == runs_.size() || begin_of(runs_[at]) >= end_of(span)) return Has::none;
  const bool all = begin_of(runs_[at]) <= begin_of(span) && Place{span.shard, span.end} <= end_of(runs_[at]);
  return all ? Has::all : Has::some;  // the result is `some` also if the span exceeds the end of its shard
}

IdentitySet::Has IdentitySet::has(std::span<const SampleSpan> spans) const {
  if (spans.empty()) return Has::none;
  const Has first = has(spans[0]);
  for (const SampleSpan& span : spans.subspan(1)) {
    if (first == Has::some || has(span) != first) return Has::some;
  }
  return first;
}

void IdentitySet::add(const SampleSpan& span) {
  const size_t at = find(span.shard, span.first);
  SampleRun run{span.shard, span.shard, span.first, span.whole_tail ? kShardEnd : span.end};
  const bool before = at > 0 && side_by_side(end_of(runs_[at - 1]), begin_of(run));
  const bool after = at < runs_.size() && side_by_side(end_of(run), begin_of(runs_[at]));
  size_t place = at;  // index of the run into which the span is merged
  if (before) {
    place = at - 1;
    run.first_shard = runs_[place].first_shard, run.first = runs_[place].first;
    fingerprint_ -= print_of(runs_[place]);
  }
  if (after) {
    run.last_shard = runs_[at].last_shard, run.end = runs_[at].end;
    fingerprint_ -= print_of(runs_[at]);
  }
  if (before && after) runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(at));
  if (before || after) {
    runs_[place] = run;
  } else {
    runs_.insert(runs_.begin() + static_cast<ptrdiff_t>(at), run);
  }
  fingerprint_ += print_of(run);
}

SlotIdentities::SlotIdentities(uint32_t slots) : group_of_(slots, 0), groups_(1) { groups_[0].slots = slots; }

void SlotIdentities::judge(std::span<const SampleSpan> spans, std::span<const uint8_t> spoken,
                           std::vector<Verdict>& verdicts) const {
  const bool all = std::find(spoken.begin(), spoken.end(), 0) == spoken.end();
  if (all && groups_.size() == 1) {
    verdicts.assign(1, verdict_of(groups_[0].set.has(spans)));
    return;
  }
  verdicts.assign(group_of_.size(), Verdict::foreign);
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const Verdict verdict = verdict_of(groups_[g].set.has(spans));
    for (uint32_t slot = 0; slot < group_of_.size(); ++slot) {
      if (group_of_[slot] == g && (all || spoken[slot] != 0)) verdicts[slot] = verdict;
    }
  }
}

uint32_t SlotIdentities::slots_to_apply(uint32_t group, std::span<const Verdict> verdicts) const {
  uint32_t slots = 0;
  for (uint32_t slot = 0; slot < group_of_.size(); ++slot) slots += applies(slot, group, verdicts) ? 1 : 0;
  return slots;
}

void SlotIdentities::reserve_more(std::span<const SampleSpan> spans, std::span<const Verdict> verdicts) {
  if (verdicts.size() == 1) {
    if (verdicts[0] == Verdict::apply) groups_[0].set.reserve_more(spans.size());
    return;
  }
  const auto before = static_cast<uint32_t>(groups_.size());
  try {
    for (uint32_t g = 0; g < before; ++g) {
      const uint32_t slots = slots_to_apply(g, verdicts);
      if (slots == 0) continue;
      if (slots == groups_[g].slots) {
        groups_[g].set.reserve_more(spans.size());
      } else {  // the other slots of the group do not apply the push, so they get a separate set
        Group copy{groups_[g].set, 0};
        copy.set.reserve_more(spans.size());
        groups_.push_back(std::move(copy));
      }
    }
  } catch (...) {
    while (groups_.size() > before) groups_.pop_back();
    throw;
  }
}

void SlotIdentities::record(std::span<const SampleSpan> spans, std::span<const Verdict> verdicts) noexcept {
  if (verdicts.size() == 1) {
    if (verdicts[0] == Verdict::apply) add_all(groups_[0].set, spans);
    return;
  }
  uint32_t before = 0;
  while (before < groups_.size() && groups_[before].slots != 0) ++before;
  for (uint32_t g = 0, copy = before; g < before; ++g) {
    const uint32_t slots = slots_to_apply(g, verdicts);
    if (slots == 0) continue;
    const uint32_t to = slots == groups_[g].slots ? g : copy++;
    add_all(groups_[to].set, spans);
    if (to == g) continue;
    for (uint32_t slot = 0; slot < group_of_.size(); ++slot) {
      if (applies(slot, g, verdicts)) move(slot, to);
    }
  }
  join_equal();
}

void SlotIdentities::put(uint32_t slot, IdentitySet set) {
  groups_.push_back({std::move(set), 0});
  move(slot, static_cast<uint32_t>(groups_.size()) - 1);
  join_equal();
}

size_t SlotIdentities::runs() const {
  size_t sum = 0;
  for (const Group& group : groups_) sum += group.set.runs().size();
  return sum;
}

size_t SlotIdentities::bytes() const {
  size_t sum = group_of_.capacity() * sizeof(uint32_t) + groups_.capacity() * sizeof(Group);
  for (const Group& group : groups_) sum += group.set.runs().capacity() * sizeof(SampleRun);
  return sum;
}

void SlotIdentities::move(uint32_t slot, uint32_t group) {
  --groups_[group_of_[slot]].slots;
  group_of_[slot] = group;
  ++groups_[group].slots;
}

void SlotIdentities::join_equal() {
  for (uint32_t a = 0; a < groups_.size(); ++a) {
    for (uint32_t b = a + 1; b < groups_.size(); ++b) {
      if (groups_[a].slots == 0 || groups_[b].slots == 0 || !(groups_[a].set == groups_[b].set)) continue;
      for (uint32_t slot = 0; slot < group_of_.size(); ++slot)
        if (group_of_[slot] == b) move(slot, a);
    }
  }
  drop_empty();
}

void SlotIdentities::drop_empty() {
  for (uint32_t g = static_cast<uint32_t>(groups_.size()); g-- > 0;) {
    if (groups_[g].slots != 0) continue;
    const auto last = static_cast<uint32_t>(groups_.size()) - 1;
    std::replace(group_of_.begin(), group_of_.end(), last, g);
    if (g != last) groups_[g] = std::move(groups_[last]);
    groups_.pop_back();
  }
}

}  // namespace springtide
