// Rows whose keys are known beforehand and unique: chunks of dense tensors, or keys that a caller names.
// In: tables, keys, dims in the caller's order. Out: values and gradients in that same order.
#pragma once

#include <memory>
#include <span>

#include "step/row_set.h"

namespace springtide {

class DenseRows {
 public:
  DenseRows(RowSource& source, std::span<const TableId> tables, std::span<const Key> keys,
            std::span<const uint32_t> dims);

  const std::shared_ptr<RowSet>& set() const { return set_; }
  // All gradients as a part of a push; NonFinite names the table's number and the key.
  Part push_part();

 private:
  std::shared_ptr<RowSet> set_;
};

}  // namespace springtide
