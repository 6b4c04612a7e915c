// Rows with known, unique keys: chunks of dense tensors, or keys named by the caller. Values and gradients
// are in the caller's order.
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
