// How often rows were trained, for workers that keep copies of them and ask how old these are
// (versioned_backend.h). Keys share counters by hash: a row may seem to have been trained more often than it
// was, never less often. Nothing is counted until somebody asks. In: keys of pushes. Out: a count a key, in
// the order of 32-bit numbers that wrap.
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
  std::atomic<std::atomic<uint32_t>*> counters_{
      nullptr};  // by the top bits of the hash, so a slot's lie together
};

}  // namespace springtide
