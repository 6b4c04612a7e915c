// A worker's row cache in front of its tables, for bsp groups. The cache reads, trains and keeps the rows that only
// this worker trains, with the server's kernels. The cache writes a row back when another worker needs it. A plan
// (cache_plan.h) makes all these decisions. Results are bit-identical to those without a cache. Protocol:
// docs/design/caching.md.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "cache/cache_plan.h"
#include "cache/row_cache.h"
#include "cache/row_training.h"
#include "step/backend.h"
#include "step/row_selection.h"

namespace springtide {

// How a plan uses a key. cached_backend.h looks up every key of a step.
enum class PlannedUse : uint8_t {
  none,  // the plan does not contain the key
  hold,  // this rank trains the row: the cache has the image, or a different rank sent it before the step
  hold_pull,
  value,  // this rank trains the row; a different rank keeps the row and sent its value before the step
  pass_hit,
  pass_pull,
};

class PlanIndex {
 public:
  explicit PlanIndex(const CachePlan& plan) {
    const size_t keys =
        plan.hits() + plan.pulls() + CachePlan::rows_of(plan.receives) + CachePlan::rows_of(plan.value_receives);
    cells_.resize(std::bit_ceil(2 * keys + 2));
    add(plan.hold_hit, PlannedUse::hold);
    for (const PeerRows& from : plan.receives) add(from.rows, PlannedUse::hold);
    for (const PeerRows& from : plan.value_receives) add(from.rows, PlannedUse::value);
    add(plan.hold_pull, PlannedUse::hold_pull);
    add(plan.pass_hit, PlannedUse::pass_hit);
    add(plan.pass_pull, PlannedUse::pass_pull);
    for (const PeerRows& to : plan.gradient_sends) {
      for (size_t i = 0; i < to.rows.size(); ++i)
        cells_[place_of(hash_key(to.rows.tables[i], to.rows.keys[i]), to.rows.tables[i])].given = true;
    }
  }

  PlannedUse of(TableId table, Key key) const { return at(table, key).use; }
  // True if the key's gradient goes to the rank that keeps the row.
  bool given(TableId table, Key key) const { return at(table, key).given; }

 private:
  struct Cell {
    uint64_t hash = 0;
    TableId table = 0;
    PlannedUse use = PlannedUse::none;
    bool given = false;
  };

  const Cell& at(TableId table, Key key) const { return cells_[place_of(hash_key(table, key), table)]; }
  size_t place_of(uint64_t hash, TableId table) const {
    const size_t mask = cells_.size() - 1;
    size_t at = hash & mask;
    while (cells_[at].use != PlannedUse::none && (cells_[at].hash != hash || cells_[at].table != table))
      at = (at + 1) & mask;
    return at;
  }
  void add(const PlanKeys& rows, PlannedUse use) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t hash = hash_key(rows.tables[i], rows.keys[i]);
      cells_[place_of(hash, rows.tables[i])] = {hash, rows.tables[i], use};
    }
  }

  std::vector<Cell> cells_;
};

// The first four fields are current values, and the others are totals. Bytes are those of rows and keys on the network.
// hits: rows read from the cache; received, sent: rows from and to other ranks; pushed: rows to servers.
//
// clang-format off
#define SPRINGTIDE_CACHE_STATS(F) \
  F(rows) F(bytes) F(dirty_rows) F(dirty_bytes) F(hits) F(pulled_values) F(pulled_images) F(received_rows) \
  F(sent_rows) F(pushed_gradients) F(pushed_images) F(trained_rows) F(dropped_rows) F(bytes_pulled) \
  F(bytes_pushed) F(flushes)
// clang-format on

struct CacheStats {
  SPRINGTIDE_CACHE_STATS(SPRINGTIDE_FIGURE)
};

struct PullInFlight;

class CachedBackend final : public CachingBackend {
 public:
  using CachingBackend::CachingBackend;

  // Sets the plan of step `step`, counted as in PushMeta. Call this function before the first pull of the step and
  // before the push of the previous step. A push that finds no plan for the next step writes everything back.
  void set_plan(uint64_t step, CachePlan plan);
  // Moves the plan of `step` to step `to`, because another step comes first. Parts of the plan that were already
  // executed are not executed again.
  void move_plan(uint64_t step, uint64_t to);
  void flush_next();  // the next push writes back all dirty rows, which stay cached
  void clear();       // forgets all rows, even dirty ones, and all plans

  // Data that ranks exchange after the push of the previous step: first the values of rows that other ranks train too,
  // then the images of rows that change owner, each followed by a dirty flag. Everything in a plan's `receives` must
  // have arrived before the first pull of the step.
  struct RankBuffer {
    uint32_t peer;
    std::vector<float> floats;
  };
  using Sizes = std::vector<std::pair<uint32_t, size_t>>;  // (rank, floats)
  std::vector<RankBuffer> sends(uint64_t step);
  Sizes receives(uint64_t step) const;
  void received(uint64_t step, uint32_t peer, std::span<const float> floats);
  // Gradients that ranks send to the keepers of rows before the push of `step`. The push must get the same parts as
  // this call. One float before each gradient is 1 if the gradient exists. Throws NonFinite as a push does.
  std::vector<RankBuffer> gradient_sends(uint64_t step, std::span<const Part> parts) const;
  Sizes gradient_receives(uint64_t step) const;
  void gradients_received(uint64_t step, uint32_t peer, std::span<const float> floats);

  CacheStats stats() const;

  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override;

 private:
  friend struct PullInFlight;

  struct Planned {
    explicit Planned(CachePlan p) : plan(std::move(p)), index(plan) {}
    CachePlan plan;
    PlanIndex index;
    bool begun = false;
    std::vector<RankBuffer> sends;
    std::map<uint32_t, std::vector<float>> gradients;  // received, by rank
  };
  // Call the functions below with the lock held.
  Planned* plan_of(uint64_t step) const;
  void begin(Planned& planned);  // call after the write-back: removes rows that go to other ranks or are dropped
  void pack(Planned& planned);
  void leave(CachedRow& row);
  Planned& known_plan(uint64_t step) const;
  Sizes sizes(const std::vector<PeerRows>& images, const std::vector<PeerRows>& others) const;
  // returns a row that the plan expects in the cache
  CachedRow& row_of(const char* list, TableId table, Key key) const;
  [[noreturn]] void refuse(const std::string& what, TableId table, Key key) const;
  void split_pull(const Part& part, const Planned* planned, RowSelection& values, RowSelection& images);
  void split_push(const Part& part, const Planned* planned, bool unique, RowSelection& grads,
                  RowTraining& training) const;
  void add_received(const Planned& planned, bool before_own, RowTraining& training) const;
  std::unique_ptr<RowSelection> write_back(const Planned* next);  // null: write back all dirty rows
  void enter(const RowSelection& images);                         // caches images that came from servers

  RowCache rows_;
  RowCache borrowed_;  // values of rows that other ranks keep; valid for one step
  std::map<uint64_t, std::unique_ptr<Planned>> plans_;
  bool flush_next_ = false;
  // true if the servers have the latest value of every row, because no rank has kept a row since a flush
  bool on_servers_ = true;
  uint64_t pushed_ = 0;  // the last planned step that was pushed
  uint64_t life_ = 0;    // increased by clear(), so that replies to requests before the call are not cached
  std::vector<std::weak_ptr<PullInFlight>> under_way_;
  CacheStats count_;
};

}  // namespace springtide
