// A worker's row cache of bounded staleness (HET's model, write-through). A row is served from here while it
// is at most `staleness` updates behind the server, by the counts that come with every pull (row_counts.h).
// Every gradient is pushed at once and also applied to the cached copy. With staleness 0 in a bsp group it is
// exact. The cache driven by plans: cached_backend.h. Design: docs/design/caching.md.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/row_cache.h"
#include "cache/row_training.h"
#include "step/backend.h"
#include "step/row_selection.h"

namespace springtide {

struct VersionedOptions {
  uint64_t capacity_bytes = 64ULL << 20;
  CacheOrder order = CacheOrder::lru;
  uint32_t staleness = 0;  // trainings by others that a copy may lack
};

// Rows since the beginning, but for the first two; bytes as they cross the wire.
struct VersionedStats {
  uint64_t rows = 0, bytes = 0;  // now
  uint64_t hits = 0;             // copies that were used
  uint64_t misses = 0;           // rows that were not here
  uint64_t stale = 0;            // copies that were too old, and pulled again
  uint64_t evicted = 0;
  uint64_t staleness_sum = 0, staleness_max = 0;  // of hits: trainings that they lacked
  uint64_t pushed_gradients = 0, trained_rows = 0;
  uint64_t bytes_pulled = 0, bytes_pushed = 0;
};

class VersionedBackend final : public Backend {
 public:
  VersionedBackend(std::shared_ptr<Backend> inner, const VersionedOptions& options);

  void cache_tables(std::span<const TableId> tables);  // declared before (row_training.h)
  size_t image_bytes(TableId table) const;             // of a row of a kept table, with its state
  void resize(uint64_t capacity_bytes);                // what is too much goes
  void clear();
  VersionedStats stats() const;
  const std::shared_ptr<Backend>& inner() const { return inner_; }

  std::shared_ptr<const Placement> placement() const override { return inner_->placement(); }
  void declare(std::span<const TableSpec> tables) override;
  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override {
    inner_->scan(table, keys, rows);
  }
  std::shared_ptr<float> buffer(size_t floats) override { return inner_->buffer(floats); }

 private:
  friend class VersionedPull;

  std::unique_ptr<RowSelection> selection(uint64_t version) const {
    return std::make_unique<RowSelection>(staging_, version);
  }
  // Pushes of this worker that a count may not know of yet: one is on its way, a few at most.
  static constexpr int32_t kOwnUnderWay = 1024;

  // With the lock held.
  bool use_copy(TableId table, Key key, uint32_t count, bool settled,
                float* home);  // whether there is one that is new enough
  void enter(TableId table, Key key, uint32_t count, const float* image);
  void reserve_more(uint64_t bytes);

  std::shared_ptr<Backend> inner_;
  VersionedOptions options_;  // its capacity: under the lock
  std::shared_ptr<StagingPool> staging_;
  mutable std::mutex mutex_;  // of all that follows
  CachedTables tables_;
  RowCache rows_;
  VersionedStats count_;
};

}  // namespace springtide
