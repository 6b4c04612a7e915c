// A worker's row cache in front of its tables, for bsp groups. Rows that only this worker trains are read,
// trained and kept here, with the server's kernels, and written back when another worker needs them. A plan
// (cache_plan.h), the same on all ranks, decides what is cached, dropped and written back. Results equal
// those without a cache, bit for bit. In: requests of a step, plans. Out: the remaining requests, to the
// inner backend. Protocol: docs/design/caching.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/cache_plan.h"
#include "cache/plan_index.h"
#include "cache/row_cache.h"
#include "cache/row_training.h"
#include "step/backend.h"
#include "step/row_selection.h"

namespace springtide {

// Rows, and bytes of rows and keys as they cross the wire, since the beginning; but for the first four.
struct CacheStats {
  uint64_t rows = 0, bytes = 0, dirty_rows = 0, dirty_bytes = 0;  // now
  uint64_t hits = 0;                                              // rows that were read here
  uint64_t pulled_values = 0, pulled_images = 0;                  // and from servers
  uint64_t received_rows = 0, sent_rows = 0;                      // from and to other ranks
  uint64_t pushed_gradients = 0, pushed_images = 0;               // to servers
  uint64_t trained_rows = 0, dropped_rows = 0;
  uint64_t bytes_pulled = 0, bytes_pushed = 0, flushes = 0;
};

struct PullInFlight;

class CachedBackend final : public Backend {
 public:
  explicit CachedBackend(std::shared_ptr<Backend> inner);

  // The tables that plans speak of, declared before (row_training.h).
  void cache_tables(std::span<const TableId> tables);
  uint32_t image_floats(TableId table) const;  // of one of these

  // What is done around `step` (as in PushMeta). Before the step's first pull, and before the push of the
  // step before it: a push that does not find the next plan writes everything back.
  void set_plan(uint64_t step, CachePlan plan);
  void move_plan(uint64_t step,
                 uint64_t to);  // another step comes first: what was done for the plan stays done
  void flush_next();            // the next push writes everything back that is dirty; rows stay here, clean
  void clear();                 // rows are forgotten, written back or not, and so are plans

  // Between ranks. After the push of the step before `step`: images of rows that change hands, each with one
  // float more, which says whether it is dirty, then values of rows that others train too. All that a plan
  // receives must be here before the step's first pull.
  struct RankBuffer {
    uint32_t peer;
    std::vector<float> floats;
  };
  using Sizes = std::vector<std::pair<uint32_t, size_t>>;  // by rank, floats
  std::vector<RankBuffer> sends(uint64_t step);
  Sizes receives(uint64_t step) const;
  void received(uint64_t step, uint32_t peer, std::span<const float> floats);
  // Before the push of `step`, which is given the same parts: gradients for the ranks that keep the rows,
  // each after one float that says whether there is one. NonFinite as with a push.
  std::vector<RankBuffer> gradient_sends(uint64_t step, std::span<const Part> parts) const;
  Sizes gradient_receives(uint64_t step) const;
  void gradients_received(uint64_t step, uint32_t peer, std::span<const float> floats);

  CacheStats stats() const;
  const std::shared_ptr<Backend>& inner() const { return inner_; }

  std::shared_ptr<const Placement> placement() const override { return inner_->placement(); }
  void declare(std::span<const TableSpec> tables) override;
  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override;
  std::shared_ptr<float> buffer(size_t floats) override { return inner_->buffer(floats); }

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
  // All with the lock held.
  Planned* plan_of(uint64_t step) const;
  void begin(Planned& planned);  // what is written back is on its way: rows leave, for other ranks or for good
  void pack(Planned& planned);
  void leave(CachedRow& row);
  const Planned& known_plan(uint64_t step) const;
  Sizes sizes(const std::vector<PeerRows>& images, const std::vector<PeerRows>& others) const;
  CachedRow& row_of(const char* list, TableId table, Key key) const;  // that a plan takes for cached
  [[noreturn]] void refuse(const std::string& what, TableId table, Key key) const;
  void split_pull(const Part& part, const Planned* planned, RowSelection& values, RowSelection& images);
  void split_push(const Part& part, const Planned* planned, bool unique, RowSelection& grads,
                  RowTraining& training) const;
  void add_received(const Planned& planned, bool before_own, RowTraining& training) const;
  std::unique_ptr<RowSelection> write_back(const Planned* next);  // all that is dirty when it is null
  void enter(const RowSelection& images);                         // those that came from servers
  std::unique_ptr<RowSelection> selection(uint64_t version) const {
    return std::make_unique<RowSelection>(staging_, version);
  }

  std::shared_ptr<Backend> inner_;
  std::shared_ptr<StagingPool> staging_;
  mutable std::mutex mutex_;  // of all that follows
  CachedTables tables_;
  RowCache rows_;
  RowCache borrowed_;  // values of rows that other ranks keep, for one step
  std::map<uint64_t, std::unique_ptr<Planned>> plans_;
  bool flush_next_ = false;
  bool on_servers_ = true;  // servers have every row of every rank: none was kept since a flush
  uint64_t pushed_ = 0;     // the last planned step that was pushed
  uint64_t life_ = 0;       // rises with clear(): what was asked for before does not enter
  std::vector<std::weak_ptr<PullInFlight>> under_way_;
  CacheStats count_;
};

}  // namespace springtide
