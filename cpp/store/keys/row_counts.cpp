#include "store/keys/row_counts.h"

#include <bit>
#include <random>

#include "base/hash.h"

namespace springtide {
namespace {

uint32_t any_number() {
  static std::mutex drawing;
  static std::mt19937_64 random(std::random_device{}());
  const std::lock_guard lock(drawing);
  return static_cast<uint32_t>(random());
}

}  // namespace

RowCounts::RowCounts(uint32_t slots) : slot_shift_(64 - static_cast<uint32_t>(std::countr_zero(slots))), bases_(slots) {
  for (auto& base : bases_) base = any_number();
}

uint32_t RowCounts::of(uint64_t hash) {
  std::atomic<uint32_t>* counters = counters_.load(std::memory_order_acquire);
  if (counters == nullptr) {
    const std::lock_guard lock(making_);
    if (!made_) made_ = std::make_unique<std::atomic<uint32_t>[]>(size_t{1} << kBits);
    counters_.store(counters = made_.get());
  }
  return bases_[hash >> slot_shift_].load(std::memory_order_relaxed) +
         counters[hash >> (64 - kBits)].load(std::memory_order_acquire);
}

void RowCounts::trained(std::span<const TableId> tables, std::span<const Key> keys) {
  std::atomic<uint32_t>* counters = counters_.load();
  if (counters == nullptr) return;
  for (size_t i = 0; i < keys.size(); ++i)
    counters[hash_key(tables[i], keys[i]) >> (64 - kBits)].fetch_add(1, std::memory_order_release);
}

void RowCounts::renew(uint32_t slot) { bases_[slot] = any_number(); }

}  // namespace springtide
