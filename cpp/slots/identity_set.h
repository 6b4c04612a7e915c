// The set of batches that a slot has applied, as ranges of samples. Exactly-once pushes are based on it. Batches arrive
// in any order. Adjacent complete shards merge, so the size depends only on the batches in flight. Why:
// docs/design/identities.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "base/vector_reserve.h"

namespace springtide {

constexpr uint64_t kShardEnd = UINT64_MAX;  // stands for the end of a shard of any size

// Samples [first, end) of a shard.
struct SampleSpan {
  uint32_t shard = 0;
  uint64_t first = 0;
  uint64_t end = 0;
  bool whole_tail = false;  // the shard ends at `end`
  bool operator==(const SampleSpan&) const = default;
};

// From sample `first` of the first shard to `end` of the last shard, with all shards between them.
struct SampleRun {
  uint32_t first_shard = 0;
  uint32_t last_shard = 0;
  uint64_t first = 0;
  uint64_t end = 0;
  bool operator==(const SampleRun&) const = default;
};

// A reserved shard number. The "samples" [id, id + 1) of this shard mean that the slot has got the initial values of
// table `id`. No job has that many shards.
constexpr uint32_t kFirstValues = UINT32_MAX;
inline SampleSpan first_values_of(TableId table) { return {kFirstValues, table, uint64_t{table} + 1}; }

// Returns the batches of one push in ascending order. Adjacent batches are merged, and empty batches are left out.
// Throws BadInput if a batch is named twice, overlaps another, exceeds its shard, or is not a range of samples.
std::vector<SampleSpan> spans_of(std::span<const BatchRange> batches);
std::string name_of(const SampleSpan& span);

class IdentitySet {
 public:
  enum class Has : uint8_t { none, all, some };

  IdentitySet() = default;
  // Reads the runs in an image. Throws BadInput unless the runs are in order, so that damaged runs are never searched.
  explicit IdentitySet(std::vector<SampleRun> runs);

  Has has(const SampleSpan& span) const;
  // Returns the result for all spans of a push together: `some` if the spans differ.
  Has has(std::span<const SampleSpan> spans) const;
  void reserve_more(size_t spans) { springtide::reserve_more(runs_, spans); }
  void add(const SampleSpan& span);  // the set must not contain any part of the spans; cannot fail after reserve_more()

  const std::vector<SampleRun>& runs() const { return runs_; }
  bool operator==(const IdentitySet& other) const { return fingerprint_ == other.fingerprint_ && runs_ == other.runs_; }

 private:
  size_t find(uint32_t shard, uint64_t first) const;  // returns the first run that ends after this sample

  std::vector<SampleRun> runs_;  // ascending, never adjacent
  uint64_t fingerprint_ = 0;
};

// What a slot must do with a push.
enum class Verdict : uint8_t {
  apply,    // the push is new: the caller records it and applies it before it releases the lock
  had,      // the slot has applied the push before: acknowledge and skip it
  foreign,  // the push does not cover the slot
  // the slot has applied only a part of these batches; nothing is applied, because gradients cannot be divided
  torn,
};

// The batches that each slot of a lock stripe has applied. Slots with the same history share one set. Such slots get
// separate sets when a push covers only some of them, or when one of them is imported or cleared. The caller holds the
// lock of the stripe.
class SlotIdentities {
 public:
  explicit SlotIdentities(uint32_t slots = 0);

  // Decides what to do with a push that covers the slots of `spoken` (empty: all slots). `verdicts` gets one entry per
  // slot, or a single entry that applies to all slots.
  void judge(std::span<const SampleSpan> spans, std::span<const uint8_t> spoken, std::vector<Verdict>& verdicts) const;
  // Reserves memory for record(), which must be called next and then cannot fail. If memory is short, this function
  // throws and changes nothing.
  void reserve_more(std::span<const SampleSpan> spans, std::span<const Verdict> verdicts);
  void record(std::span<const SampleSpan> spans, std::span<const Verdict> verdicts) noexcept;

  const IdentitySet& of(uint32_t slot) const { return groups_[group_of_[slot]].set; }
  void put(uint32_t slot, IdentitySet set);  // replaces the slot's set
  size_t sets() const { return groups_.size(); }
  size_t runs() const;  // number of runs in all sets
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
  // Between reserve_more() and record(), its last entries are copies that have no slots yet.
  std::vector<Group> groups_;
};

}  // namespace springtide
