// Update counts of rows, for workers that cache copies (versioned_backend.h). Several keys may share a counter by hash,
// so a count may be too high, but never too low. Counting starts with the first query of a count. Counts are 32-bit and
// wrap.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/types.h"

namespace springtide {

class RowCounts {
 public:
  explicit RowCounts(uint32_t slots) : slot_shift_(64 - static_cast<uint32_t>(std::countr_zero(slots))), bases_(slots) {
    for (auto& base : bases_) base = any_number();
  }

  uint32_t of(uint64_t hash) {
    std::atomic<uint32_t>* counters = counters_.load(std::memory_order_acquire);
    if (counters == nullptr) {
      const std::lock_guard lock(making_);
      if (!made_) made_ = std::make_unique<std::atomic<uint32_t>[]>(size_t{1} << kBits);
      counters_.store(counters = made_.get());
    }
    return bases_[hash >> slot_shift_].load(std::memory_order_relaxed) +
           counters[hash >> (64 - kBits)].load(std::memory_order_acquire);
  }
  // Call this function after the rows have changed. A reader that reads first the count and then the row never gets a
  // row older than the count.
  void trained(std::span<const TableId> tables, std::span<const Key> keys) {
    std::atomic<uint32_t>* counters = counters_.load();
    if (counters == nullptr) return;
    for (size_t i = 0; i < keys.size(); ++i)
      counters[hash_key(tables[i], keys[i]) >> (64 - kBits)].fetch_add(1, std::memory_order_release);
  }
  // Call this function when a slot gets different rows. The call makes all earlier counts of the slot invalid.
  void renew(uint32_t slot) { bases_[slot] = any_number(); }

 private:
  static uint32_t any_number() {
    static std::mutex drawing;
    static std::mt19937_64 random(std::random_device{}());
    const std::lock_guard lock(drawing);
    return static_cast<uint32_t>(random());
  }
  static constexpr uint32_t kBits = 23;  // 8 M counters; 32 MiB, once they are touched

  uint32_t slot_shift_;
  std::vector<std::atomic<uint32_t>> bases_;  // by slot, drawn at random
  std::mutex making_;
  std::unique_ptr<std::atomic<uint32_t>[]> made_;
  // The index is the top bits of the hash, so that the counters of a slot are adjacent.
  std::atomic<std::atomic<uint32_t>*> counters_{nullptr};
};

}  // namespace springtide
