// The rows of one batch: its unique keys, where they are, how rows are pooled, and how gradients are summed per key.
// In: ids per feature. Out: pooled rows, and later one gradient per unique key. Tables are reached through backend.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "step/backend.h"
#include "step/dedup.h"
#include "step/pooling.h"
#include "step/row_set.h"

namespace springtide {

// The constant properties of a feature. Features that share a table also share unique rows.
struct FeatureSpec {
  std::string name;  // for messages
  TableId table = 0;
  uint32_t dim = 0;
  uint16_t group = 0;  // rows of one group are contiguous; a group is one parameter of the model
  uint64_t rows = 0;   // ids must lie in [0, rows); 0 means open-ended
  bool has_padding = false;
  Key padding = 0;            // padding id, whose occurrences are not trained
  bool pull_padding = false;  // true if the padding row is still read (nn.Embedding); otherwise it is ignored (bags)
};

// The features of a step. The features are checked once: a table has one dim and one group.
struct StepPlan {
  explicit StepPlan(std::vector<FeatureSpec> features, bool wire_order = false);
  std::vector<FeatureSpec> features;
  std::vector<std::vector<uint32_t>> tables;  // feature indices of each table
  std::vector<uint32_t> table_of;             // of each feature, an index into tables
  std::vector<std::pair<TableId, std::string>> names;
  size_t groups = 0;
  bool wire_order = false;  // true if the caller sees rows in message order, to copy them to a GPU (row_set.h)
};

struct FeatureIds {
  const Key* ids = nullptr;
  int64_t count = 0;
  int64_t stride = 1;  // distance in ids; with it, a column of a [batch, features] tensor needs no copy
};

struct PoolItem {
  size_t feature = 0;
  Bag bag;
  float* out = nullptr;
  int64_t stride = 0;  // floats from the start of one output row to the next
};

struct GradItem {
  size_t feature = 0;
  Bag bag;  // the same meaning as in pool()
  const float* grad = nullptr;
  int64_t stride = 0;
  float* grad_weights = nullptr;  // d(per-sample weights), if they are needed
};

class StepRows {
 public:
  // Reads the ids, which may change after this call. Throws BadInput with the feature, the position and the id that is
  // out of range.
  StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<const FeatureIds> ids);

  // Joins the gradients of several backward passes. If a key is in several parts, its gradients are summed in the order
  // of the parts. After the call, the gradients of the parts are zero. `groups[p][g]` is the new group of group g of
  // part p; a negative number leaves the group out.
  StepRows(RowSource& source, std::shared_ptr<const StepPlan> plan, std::span<StepRows* const> parts,
           std::span<const std::vector<int>> groups);

  const std::shared_ptr<RowSet>& set() const { return set_; }
  size_t unique() const { return set_->routed().keys.size(); }

  // Writes one output row per bag (or id). The function waits for the pull first.
  void pool(std::span<const PoolItem> items);
  // Adds d(out) to the gradients. Items of one table are added in their order, and each item in the order of the batch.
  void accumulate(std::span<const GradItem> items);
  // Does the same for all features together, with one id per bag, and with outputs side by side in rows of `stride`
  // floats.
  void pool_columns(int64_t bags, float* out, int64_t stride);
  void accumulate_columns(int64_t bags, const float* grad, int64_t stride);
  // Writes the key of each id, feature by feature: twice its row in message order, plus 1 if the id is padding. The row
  // of a padding id is the padding row, or 0 if the feature does not read it. All features have the same dim.
  void write_keys(int32_t* keys);
  size_t ids() const { return at_.size(); }
  // Returns true if all gradients are finite. Each call checks the current values, because the caller may change them
  // between calls.
  bool finite();
  Part push_part() { return set_->push_part(plan_->names, false); }

 private:
  Occurrences occurrences(size_t feature) const;
  std::vector<Occurrences> columns(int64_t bags) const;
  void dedup(std::span<const FeatureIds> ids);
  void dedup_feature(size_t feature, const FeatureIds& ids, const KeyIndex::Filling& index, UniqueKeys::Run& run);
  bool trains(size_t feature, uint32_t unique) const;  // true if a feature of its table trains this row
  void for_each(size_t shares, const std::function<void(uint32_t)>& work);

  std::shared_ptr<const StepPlan> plan_;
  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<RowSet> set_;
  std::vector<uint32_t>& at_;         // row offsets of all occurrences, feature by feature, in memory of set_
  std::vector<size_t> begin_;         // the place where each feature begins in at_
  std::vector<uint32_t> padding_at_;  // padding row of each feature
};

// Rows with known unique keys (chunks of dense tensors, or keys that the caller names), in the caller's order.
class DenseRows {
 public:
  DenseRows(RowSource& source, std::span<const TableId> tables, std::span<const Key> keys,
            std::span<const uint32_t> dims);

  const std::shared_ptr<RowSet>& set() const { return set_; }
  // Returns all gradients as a part of a push. Throws NonFinite with the number of the table and the key.
  Part push_part();

 private:
  std::shared_ptr<RowSet> set_;
};

}  // namespace springtide
