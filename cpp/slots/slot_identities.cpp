#include "slots/slot_identities.h"

#include <algorithm>

namespace springtide {

namespace {

Verdict verdict_of(IdentitySet::Has has) {
  switch (has) {
    case IdentitySet::Has::none:
      return Verdict::apply;
    case IdentitySet::Has::all:
      return Verdict::had;
    default:
      return Verdict::torn;
  }
}

void add_all(IdentitySet& set, std::span<const SampleSpan> spans) {
  for (const SampleSpan& span : spans) set.add(span);
}

}  // namespace

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
      } else {  // the others have not had it: from here on they differ
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
