// The batches that a slot has applied, as ranges of samples: the memory behind "each batch once".
// In: identities of pushes. Out: whether they are new. A set, not a highest mark: messages come in any order.
// Next: slot_identities.h (slots that share one set). Why: docs/design/identities.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "room.h"
#include "types.h"

namespace springtide {

// Samples [first, end) of a shard.
struct SampleSpan {
  uint32_t shard = 0;
  uint32_t epoch = 0;
  uint64_t first = 0;
  uint64_t end = 0;
  bool operator==(const SampleSpan&) const = default;
};

// Shards `first` to `last`, both of them finished.
struct ShardRun {
  uint32_t first = 0;
  uint32_t last = 0;
  bool operator==(const ShardRun&) const = default;
};

// What slots remember in place of a shard: the tables whose first values they have, as "samples" [id, id +
// 1). Tables side by side are one span. No job has so many shards.
constexpr uint32_t kFirstValues = UINT32_MAX;
inline SampleSpan first_values_of(TableId table) { return {kFirstValues, 0, table, uint64_t{table} + 1}; }

// The batches of one push in order, those side by side as one. BadInput when one is named twice, overlaps
// another or is no range of samples; an empty batch is left out.
std::vector<SampleSpan> spans_of(std::span<const BatchRange> batches);
std::string name_of(const SampleSpan& span);

class IdentitySet {
 public:
  enum class Has : uint8_t { none, all, some };

  IdentitySet() = default;
  // What an image says. BadInput unless it is in order, so that a damaged one is never searched.
  IdentitySet(std::vector<SampleSpan> spans, std::vector<ShardRun> finished);

  Has has(const SampleSpan& span) const;
  // Of all spans of a push together: `some` when they are not all alike.
  Has has(std::span<const SampleSpan> spans) const;
  void make_room(size_t spans) { springtide::make_room(spans_, spans); }
  void add(const SampleSpan& span);  // of which it has none; cannot fail if there is room
  // Every batch of the shard is applied: only this is remembered of it, and shards side by side are one.
  void finish(uint32_t shard);

  const std::vector<SampleSpan>& spans() const { return spans_; }
  const std::vector<ShardRun>& finished() const { return finished_; }
  uint64_t fingerprint() const { return fingerprint_; }  // equal for equal sets
  bool operator==(const IdentitySet& other) const {
    return fingerprint_ == other.fingerprint_ && spans_ == other.spans_ && finished_ == other.finished_;
  }

 private:
  size_t find(const SampleSpan& span) const;  // the first that ends after the span begins
  bool has_finished(uint32_t shard) const;

  std::vector<SampleSpan> spans_;  // by shard, epoch, first; never side by side
  std::vector<ShardRun> finished_;
  uint64_t fingerprint_ = 0;
};

}  // namespace springtide
