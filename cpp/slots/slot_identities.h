// The batches applied by each slot of a lock stripe. Slots with the same history share one set and part when
// a push covers only some of them, or one is imported or cleared. Recording cannot fail after a reservation.
// Used by store_once.cpp under the stripe's lock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slots/identity_set.h"

namespace springtide {

// What becomes of a push at one slot.
enum class Verdict : uint8_t {
  apply,    // new: the caller records and applies it before it lets go of the lock
  had,      // applied before: acknowledge and skip
  foreign,  // the push does not speak for the slot
  torn,     // the slot has a part of these batches: nothing is applied, since gradients cannot be split
};

class SlotIdentities {
 public:
  explicit SlotIdentities(uint32_t slots = 0);

  // What becomes of a push at each slot. `spoken` says which slots it speaks for (empty: all). `verdicts` has
  // one entry a slot, or a single one that holds for all of them.
  void judge(std::span<const SampleSpan> spans, std::span<const uint8_t> spoken, std::vector<Verdict>& verdicts) const;
  // Makes room for record(), which must come next: the spans are noted at every slot to which they are
  // applied. Without memory nothing has changed.
  void reserve_more(std::span<const SampleSpan> spans, std::span<const Verdict> verdicts);
  void record(std::span<const SampleSpan> spans, std::span<const Verdict> verdicts) noexcept;

  const IdentitySet& of(uint32_t slot) const { return groups_[group_of_[slot]].set; }
  void put(uint32_t slot, IdentitySet set);  // replaces what the slot remembered
  size_t sets() const { return groups_.size(); }
  size_t runs() const;  // in all of them
  size_t bytes() const;

 private:
  struct Group {
    IdentitySet set;
    uint32_t slots = 0;
  };
  bool applies(uint32_t slot, uint32_t group, std::span<const Verdict> verdicts) const {
    return group_of_[slot] == group && verdicts[slot] == Verdict::apply;
  }
  uint32_t slots_to_apply(uint32_t group, std::span<const Verdict> verdicts) const;
  void move(uint32_t slot, uint32_t group);
  void drop_empty();
  void join_equal();

  std::vector<uint32_t> group_of_;  // by slot of the stripe
  std::vector<Group> groups_;       // between reserve_more() and record() some copies at the end, of no slots yet
};

}  // namespace springtide
