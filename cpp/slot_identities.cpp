#include "slot_identities.h"

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

bool SlotIdentities::admit(std::span<const SampleSpan> spans, std::span<const uint8_t> spoken,
                           std::vector<Verdict>& verdicts) {
  const bool all = std::find(spoken.begin(), spoken.end(), 0) == spoken.end();
  if (all && groups_.size() == 1) {
    verdicts.assign(1, verdict_of(groups_[0].set.has(spans)));
    if (verdicts[0] == Verdict::apply) add_all(groups_[0].set, spans);
    return true;
  }
  verdicts.assign(group_of_.size(), Verdict::foreign);
  const size_t before = groups_.size();
  for (uint32_t g = 0; g < before; ++g) {
    uint32_t spoken_slots = 0;
    for (size_t slot = 0; slot < group_of_.size(); ++slot)
      spoken_slots += group_of_[slot] == g && (all || spoken[slot] != 0) ? 1 : 0;
    if (spoken_slots == 0) continue;
    const Verdict verdict = verdict_of(groups_[g].set.has(spans));
    uint32_t to = g;
    if (verdict == Verdict::apply) {
      if (spoken_slots != groups_[g].slots) {  // the others have not had it: from here on they differ
        to = static_cast<uint32_t>(groups_.size());
        groups_.push_back({groups_[g].set, 0});
      }
      add_all(groups_[to].set, spans);
    }
    for (uint32_t slot = 0; slot < group_of_.size(); ++slot) {
      if (group_of_[slot] != g || !(all || spoken[slot] != 0)) continue;
      verdicts[slot] = verdict;
      move(slot, to);
    }
  }
  join_equal();
  return false;
}

void SlotIdentities::put(uint32_t slot, IdentitySet set) {
  groups_.push_back({std::move(set), 0});
  move(slot, static_cast<uint32_t>(groups_.size()) - 1);
  join_equal();
}

void SlotIdentities::finish(std::span<const uint32_t> shards) {
  for (Group& group : groups_) {
    for (const uint32_t shard : shards) group.set.finish(shard);
  }
  join_equal();
}

size_t SlotIdentities::spans() const {
  size_t sum = 0;
  for (const Group& group : groups_) sum += group.set.spans().size() + group.set.finished().size();
  return sum;
}

size_t SlotIdentities::bytes() const {
  size_t sum = group_of_.capacity() * sizeof(uint32_t) + groups_.capacity() * sizeof(Group);
  for (const Group& group : groups_) {
    sum += group.set.spans().capacity() * sizeof(SampleSpan);
    sum += group.set.finished().capacity() * sizeof(ShardRun);
  }
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
