#include "step/dense_rows.h"

#include "base/hash.h"

namespace springtide {

// Two groups, the second one empty, keep the rows in the caller's order instead of the wire's.
DenseRows::DenseRows(RowSource& source, std::span<const TableId> tables, std::span<const Key> keys,
                     std::span<const uint32_t> dims)
    : set_(source.take()) {
  if (tables.size() != keys.size() || dims.size() != keys.size())
    throw BadInput(std::to_string(tables.size()) + " tables, " + std::to_string(keys.size()) + " keys and " +
                   std::to_string(dims.size()) + " dims; there must be as many of each");
  UniqueKeys& unique = set_->unique();
  for (size_t begin = 0, end = 0; begin < keys.size(); begin = end) {
    while (end < keys.size() && tables[end] == tables[begin] && dims[end] == dims[begin]) ++end;
    unique.add_run(tables[begin], dims[begin], 0, end - begin);
    for (size_t i = begin; i < end; ++i) unique.add(unique.runs.back(), keys[i], hash_key(tables[i], keys[i]));
  }
  set_->route(source, 2);
  set_->follow(source.weak_from_this());
}

Part DenseRows::push_part() {
  set_->touch(0);
  set_->touch(1);
  return set_->push_part({}, true);
}

}  // namespace springtide
