// Trains rows outside of a store with the same kernels, operands and order, so that the results are bit-identical. In:
// images in a worker's cache, gradients of a step. Out: the updated images.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/types.h"
#include "cache/row_cache.h"
#include "step/backend.h"
#include "step/row_selection.h"
#include "store/kernels/finite.h"
#include "store/kernels/optimizer.h"

namespace springtide {

struct CachedTable {
  explicit CachedTable(const TableSpec& s) : spec(s), optimizer(s.optim, s.dim, s.name) {}
  uint32_t image_floats() const { return spec.dim + optimizer.state_floats(); }
  // A 16-bit row is widened to float32 for the step and rounded afterwards, exactly as in a store.
  void train(const StepArgs& args, float* image, const float* grad) const {
    float* vectors = image + spec.dim;
    optimizer.kernel()(args, image, vectors, vectors + optimizer.vector_floats(), grad, spec.dim);
    if (spec.dtype == DType::f32) return;
    thread_local std::vector<uint16_t> stored;
    stored.resize(spec.dim);
    narrow(spec.dtype, image, stored.data(), spec.dim);
    widen(spec.dtype, stored.data(), image, spec.dim);
  }

  TableSpec spec;
  Optimizer optimizer;
};

// The tables whose rows a worker caches.
class CachedTables {
 public:
  void declared(std::span<const TableSpec> tables) {
    for (const TableSpec& spec : tables) declared_[spec.id] = spec;
  }
  // Throws BadInput for a table that is not declared, and for a table with rows that only a store can train.
  void keep(std::span<const TableId> tables) {
    for (const TableId id : tables) {
      const auto spec = declared_.find(id);
      if (spec == declared_.end()) throw BadInput("table ", id, " is to be cached but was never declared");
      if (const std::string why = refusal_of(spec->second); !why.empty())
        throw BadInput("table '", spec->second.name, "' cannot be cached: ", why);
      if (kept_.size() <= id) kept_.resize(id + size_t{1});
      if (!kept_[id]) kept_[id] = std::make_unique<CachedTable>(spec->second);
    }
  }
  // Returns why a worker cannot train rows of this table; empty if it can. If a table has admission or eviction, the
  // fate of a row depends on when and how often a store sees its gradients.
  static std::string refusal_of(const TableSpec& spec) {
    if (spec.min_count > 1) return "the table admits keys by number of trainings (min_count)";
    if (spec.ttl != 0) return "its rows age (ttl)";
    if (spec.capacity_rows != 0) return "its rows are bounded (capacity_rows)";
    return {};
  }

  const CachedTable* of(TableId id) const { return id < kept_.size() ? kept_[id].get() : nullptr; }
  // Throws BadInput for a table that is not cached.
  const CachedTable& known(TableId id) const {
    if (const CachedTable* table = of(id)) return *table;
    throw BadInput("table ", id, " is not cached");
  }
  // True if a request has keys of a cached table.
  bool any_of(const Routed& routed) const {
    return std::any_of(routed.tables.begin(), routed.tables.end(),
                       [this](TableId table) { return of(table) != nullptr; });
  }
  size_t ids() const { return kept_.size(); }
  std::string name_of(TableId id) const {
    const auto spec = declared_.find(id);
    return spec == declared_.end() ? std::to_string(id) : "'" + spec->second.name + "'";
  }

 private:
  std::map<TableId, TableSpec> declared_;
  std::vector<std::unique_ptr<CachedTable>> kept_;  // by id; null: not cached
};

[[noreturn]] inline void throw_non_finite(Key key, const CachedTable& table) {
  throw NonFinite("the gradient of key ", key, " of table '", table.spec.name,
                  "' holds NaN or infinity; nothing of this push was applied");
}

// Gradients of one step that are applied to cached rows. Gradients of one key are summed in the order of the calls of
// add().
class RowTraining {
 public:
  // Throws NonFinite, which names the key. `unique`: true if no key occurs twice.
  void add(CachedRow& row, const CachedTable& table, const float* grad, bool unique) {
    const uint32_t dim = table.spec.dim;
    if (!all_finite(grad, dim)) throw_non_finite(row.key(), table);
    if (!unique) {
      const auto [at, fresh] = place_.try_emplace(&row, rows_.size());
      if (!fresh) {
        Row& first = rows_[at->second];
        if (first.summed == nullptr) {
          sums_.emplace_back(first.grad, first.grad + dim);
          first.grad = first.summed = sums_.back().data();
        }
        for (uint32_t k = 0; k < dim; ++k) first.summed[k] += grad[k];
        return;
      }
    }
    rows_.push_back({&row, &table, grad, nullptr});
  }
  // Trains all rows and then calls `done(row)` for each. Throws BadInput and changes nothing if a table has no learning
  // rate.
  template <class Done>
  void apply(const CachedTables& tables, const PushMeta& meta, Done done) const {
    const std::vector<StepArgs> args = prepare(tables, meta);
    for (const Row& one : rows_) {
      one.table->train(args[one.row->table], one.row->image, one.grad);
      done(*one.row);
    }
  }
  size_t size() const { return rows_.size(); }

 private:
  struct Row {
    CachedRow* row;
    const CachedTable* table;
    const float* grad;
    float* summed;  // set if `grad` is a sum that this object has computed, instead of the caller's memory
  };
  // by table
  std::vector<StepArgs> prepare(const CachedTables& tables, const PushMeta& meta) const {
    std::vector<StepArgs> args(tables.ids());
    std::vector<uint8_t> named(tables.ids(), 0);
    for (const TableHyper& hyper : meta.hyper) {
      const CachedTable* table = tables.of(hyper.table);
      // of two entries for one table, the first counts, as on a server
      if (table == nullptr || named[hyper.table] != 0) continue;
      args[hyper.table] = table->optimizer.prepare(hyper);
      named[hyper.table] = 1;
    }
    for (const Row& one : rows_)
      if (named[one.row->table] == 0)
        throw BadInput("the push holds keys of table '", one.table->spec.name, "' but no learning rate for it");
    return args;
  }

  std::vector<Row> rows_;
  std::map<CachedRow*, size_t> place_;   // index in rows_; used if keys may occur twice
  std::deque<std::vector<float>> sums_;  // deque: rows_ point into them
};

// A backend that caches rows of some tables in front of another backend.
class CachingBackend : public Backend {
 public:
  explicit CachingBackend(std::shared_ptr<Backend> inner)
      : inner_(std::move(inner)), staging_(std::make_shared<StagingPool>(inner_)) {}

  // Sets the tables to cache; they must be declared.
  void cache_tables(std::span<const TableId> tables) {
    const std::lock_guard lock(mutex_);
    tables_.keep(tables);
  }
  // Bytes of one cached row of the table, with its optimizer state.
  size_t image_bytes(TableId table) const {
    const std::lock_guard lock(mutex_);
    return RowCache::row_bytes(tables_.known(table).image_floats());
  }
  const std::shared_ptr<Backend>& inner() const { return inner_; }

  std::shared_ptr<const Placement> placement() const override { return inner_->placement(); }
  uint64_t declare(std::span<const TableSpec> tables) override {
    const uint64_t age = inner_->declare(tables);
    const std::lock_guard lock(mutex_);
    tables_.declared(tables);
    return age;
  }
  std::shared_ptr<float> buffer(size_t floats) override { return inner_->buffer(floats); }

 protected:
  std::unique_ptr<RowSelection> selection(uint64_t version) const {
    return std::make_unique<RowSelection>(staging_, version);
  }

  const std::shared_ptr<Backend> inner_;
  const std::shared_ptr<StagingPool> staging_;
  mutable std::mutex mutex_;  // guards all cached rows
  CachedTables tables_;
};

}  // namespace springtide
