// Trains rows outside a store with the same kernels, operands and order, hence the same bits.
// In: images in a worker's cache, gradients of a step. Out: the updated images.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "cache/row_cache.h"
#include "step/backend.h"
#include "store/kernels/optimizer.h"

namespace springtide {

struct CachedTable {
  explicit CachedTable(const TableSpec& s) : spec(s), optimizer(s.optim, s.dim, s.name) {}
  uint32_t image_floats() const { return spec.dim + optimizer.state_floats(); }
  void train(const StepArgs& args, float* image, const float* grad) const;

  TableSpec spec;
  Optimizer optimizer;
};

// The tables whose rows a worker keeps.
class CachedTables {
 public:
  void declared(std::span<const TableSpec> tables);
  // BadInput for one that was not declared, or whose rows cannot be trained outside a store.
  void keep(std::span<const TableId> tables);
  // Why rows of this table cannot be trained by a worker; empty when they can.
  static std::string refusal_of(const TableSpec& spec);

  const CachedTable* of(TableId id) const { return id < kept_.size() ? kept_[id].get() : nullptr; }
  const CachedTable& known(TableId id) const;  // BadInput for one that is not kept
  bool any_of(const Routed& routed) const;     // whether a request speaks of one
  size_t ids() const { return kept_.size(); }
  std::string name_of(TableId id) const;

 private:
  std::map<TableId, TableSpec> declared_;
  std::vector<std::unique_ptr<CachedTable>> kept_;  // by id; null: not kept
};

[[noreturn]] void throw_non_finite(Key key, const CachedTable& table);

// Gradients of one step that are applied to cached rows. Those of one key are summed in the order they came.
class RowTraining {
 public:
  // NonFinite, naming the key. `unique`: no key comes twice.
  void add(CachedRow& row, const CachedTable& table, const float* grad, bool unique);
  // BadInput, with nothing done, when a table has no learning rate. Afterwards `done(row)` is told of each.
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
    float* summed;  // where `grad` is not the caller's
  };
  std::vector<StepArgs> prepare(const CachedTables& tables, const PushMeta& meta) const;  // by table

  std::vector<Row> rows_;
  std::map<CachedRow*, size_t> place_;   // in rows_, where keys may come twice
  std::deque<std::vector<float>> sums_;  // deque: rows_ point into them
};

}  // namespace springtide
