#include "dense_rows.h"

#include "hash.h"

namespace springtide {

// Two groups, the second one empty, keep the rows in the caller's order instead of the wire's.
DenseRows::DenseRows(RowSource& source, std::span<const TableId> tables, std::span<const Key> keys,
                     std::span<const uint32_t> dims)
    : set_(source.take()) {
  if (tables.size() != keys.size() || dims.size() != keys.size())
    throw BadInput(std::to_string(tables.size()) + " tables, " + std::to_string(keys.size()) + " keys and " +
                   std::to_string(dims.size()) + " dims; there must be as many of each");
  UniqueKeys& unique = set_->unique();
  unique.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i == 0 || tables[i] != tables[i - 1] || dims[i] != dims[i - 1])
      unique.begin_run(tables[i], dims[i], 0);
    unique.add(keys[i], hash_key(tables[i], keys[i]));
    unique.end_run();
  }
  set_->route(source, 2);
}

Part DenseRows::push_part() {
  set_->touch(0);
  set_->touch(1);
  return set_->push_part({}, true);
}

}  // namespace springtide
