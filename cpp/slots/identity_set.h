// The batches that a slot has applied, as ranges of samples: the basis of exactly-once pushes. Messages come in any
// order. Adjacent complete shards merge, so the size is that of the batches in flight. Why: docs/design/identities.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "base/vector_reserve.h"

namespace springtide {

constexpr uint64_t kShardEnd = UINT64_MAX;  // the end of a shard, whichever sample that is

// Samples [first, end) of a shard.
struct SampleSpan {
  uint32_t shard = 0;
  uint64_t first = 0;
  uint64_t end = 0;
  bool whole_tail = false;  // the shard ends there
  bool operator==(const SampleSpan&) const = default;
};

// From sample `first` of the first shard up to `end` of the last one, with all of the shards between them.
struct SampleRun {
  uint32_t first_shard = 0;
  uint32_t last_shard = 0;
  uint64_t first = 0;
  uint64_t end = 0;
  bool operator==(const SampleRun&) const = default;
};

// What slots remember in place of a shard: the tables whose first values they have, as "samples" [id, id +
// 1). Tables side by side are one span. No job has so many shards.
constexpr uint32_t kFirstValues = UINT32_MAX;
inline SampleSpan first_values_of(TableId table) { return {kFirstValues, table, uint64_t{table} + 1}; }

// The batches of one push in order, those side by side as one. BadInput when one is named twice, overlaps
// another, lies beyond its shard or is no range of samples; an empty batch is left out.
std::vector<SampleSpan> spans_of(std::span<const BatchRange> batches);
std::string name_of(const SampleSpan& span);

class IdentitySet {
 public:
  enum class Has : uint8_t { none, all, some };

  IdentitySet() = default;
  // What an image says. BadInput unless it is in order, so that a damaged one is never searched.
  explicit IdentitySet(std::vector<SampleRun> runs);

  Has has(const SampleSpan& span) const;
  // Of all spans of a push together: `some` when they are not all alike.
  Has has(std::span<const SampleSpan> spans) const;
  void reserve_more(size_t spans) { springtide::reserve_more(runs_, spans); }
  void add(const SampleSpan& span);  // of which it has none; cannot fail if there is room

  const std::vector<SampleRun>& runs() const { return runs_; }
  bool operator==(const IdentitySet& other) const { return fingerprint_ == other.fingerprint_ && runs_ == other.runs_; }

 private:
  size_t find(uint32_t shard, uint64_t first) const;  // the first that ends after this sample

  std::vector<SampleRun> runs_;  // ascending, never side by side
  uint64_t fingerprint_ = 0;
};

// Decision on a push at one slot.
enum class Verdict : uint8_t {
  apply,    // new: the caller records and applies it before it lets go of the lock
  had,      // applied before: acknowledge and skip
  foreign,  // the push does not speak for the slot
  torn,     // the slot has a part of these batches: nothing is applied, since gradients cannot be split
};

// The batches applied by each slot of a lock stripe. Slots with the same history share one set and part when a push
// covers only some of them, or one is imported or cleared. Used under the stripe's lock.
class SlotIdentities {
 public:
  explicit SlotIdentities(uint32_t slots = 0);

  // Decides on a push that covers the slots of `spoken` (empty: all). `verdicts` gets one entry a slot, or one for all.
  void judge(std::span<const SampleSpan> spans, std::span<const uint8_t> spoken, std::vector<Verdict>& verdicts) const;
  // Makes room for record(), which must come next and cannot fail. Without memory nothing has changed.
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
