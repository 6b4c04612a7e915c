// A worker's row cache of bounded staleness (HET's model, write-through). The cache uses a copy that is at most
// `staleness` updates behind the server, as shown by the counts that come with every pull (row_counts.h). Every
// gradient is pushed immediately and also applied to the copy. With staleness 0 in a bsp group, results are exact.
// Design: docs/design/caching.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/row_cache.h"
#include "cache/row_training.h"
#include "step/backend.h"
#include "step/row_selection.h"

namespace springtide {

struct VersionedOptions {
  uint64_t capacity_bytes = 64ULL << 20;
  uint32_t staleness = 0;  // number of updates by other workers that a copy may lack
};

// The first two fields are current values, and the others are totals; bytes are as on the network. stale: old copies
// that were pulled again. staleness: updates missing in hits.
// clang-format off
#define SPRINGTIDE_VERSIONED_STATS(F) \
  F(rows) F(bytes) F(hits) F(misses) F(stale) F(evicted) F(staleness_sum) F(staleness_max) F(pushed_gradients) \
  F(trained_rows) F(bytes_pulled) F(bytes_pushed)
// clang-format on

struct VersionedStats {
  SPRINGTIDE_VERSIONED_STATS(SPRINGTIDE_FIGURE)
};

class VersionedBackend final : public CachingBackend {
 public:
  VersionedBackend(std::shared_ptr<Backend> inner, const VersionedOptions& options);

  void resize(uint64_t capacity_bytes);  // evicts rows that exceed the new capacity
  void clear();
  VersionedStats stats() const;

  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override {
    inner_->scan(table, keys, rows);
  }

 private:
  friend class VersionedPull;

  // Limit on the number of this worker's own pushes that a server's count may lack. Usually one push is in flight, and
  // never more than a few.
  static constexpr int32_t kOwnUnderWay = 1024;

  // Call with the lock held.
  bool use_copy(TableId table, Key key, uint32_t count, bool settled, float* home);  // false: no copy is new enough
  void enter(TableId table, Key key, uint32_t count, const float* image);
  void reserve_more(uint64_t bytes);

  VersionedOptions options_;  // capacity is guarded by the lock
  RowCache rows_;
  VersionedStats count_;
};

}  // namespace springtide
