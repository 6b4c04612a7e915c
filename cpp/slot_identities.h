// Which batches each slot of a lock stripe has applied. Slots with one history share one set; a push that
// speaks for some of them only, an image or a clearing parts them, and they join again once they are equal.
// In: a push, under the stripe's lock. Out: which slots it must be applied to. Next: store_once.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "identity_set.h"

namespace springtide {

// What becomes of a push at one slot.
enum class Verdict : uint8_t {
  apply,    // new: recorded now, so the caller applies the rows before it lets go of the lock
  had,      // applied before: acknowledge and skip
  foreign,  // the push does not speak for the slot
  torn,     // the slot has a part of these batches: nothing is applied, since gradients cannot be split
};

class SlotIdentities {
 public:
  explicit SlotIdentities(uint32_t slots = 0);

  // Records the spans at every slot that has none of them. `spoken` says which slots the push speaks for
  // (empty: all); `verdicts` has one entry a slot. True: all slots are alike, verdicts[0] holds for each.
  bool admit(std::span<const SampleSpan> spans, std::span<const uint8_t> spoken,
             std::vector<Verdict>& verdicts);

  const IdentitySet& of(uint32_t slot) const { return groups_[group_of_[slot]].set; }
  void put(uint32_t slot, IdentitySet set);  // replaces what the slot remembered
  void finish(std::span<const uint32_t> shards);
  size_t sets() const { return groups_.size(); }
  size_t spans() const;  // in all of them
  size_t bytes() const;

 private:
  struct Group {
    IdentitySet set;
    uint32_t slots = 0;
  };
  void move(uint32_t slot, uint32_t group);
  void drop_empty();
  void join_equal();

  std::vector<uint32_t> group_of_;  // by slot of the stripe
  std::vector<Group> groups_;
};

}  // namespace springtide
