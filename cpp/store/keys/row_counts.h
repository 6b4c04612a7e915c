// Update counts of rows, for workers that cache copies (versioned_backend.h). Keys share counters by hash, so
// a count may be too high, never too low. Counting starts with the first query. Counts are 32-bit and wrap.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/types.h"

namespace springtide {

class RowCounts {
 public:
  explicit RowCounts(uint32_t slots);

  uint32_t of(uint64_t hash);
  // After the rows have changed: who reads a count and then the row reads nothing older than that.
  void trained(std::span<const TableId> tables, std::span<const Key> keys);
  // Other rows are in the slot now: counts that were told before mean nothing any more.
  void renew(uint32_t slot);

 private:
  static constexpr uint32_t kBits = 23;  // 8 M counters, 32 MiB once they are touched

  uint32_t slot_shift_;
  std::vector<std::atomic<uint32_t>> bases_;  // by slot, drawn at random
  std::mutex making_;
  std::unique_ptr<std::atomic<uint32_t>[]> made_;
  std::atomic<std::atomic<uint32_t>*> counters_{nullptr};  // by the top bits of the hash, so a slot's lie together
};

}  // namespace springtide
