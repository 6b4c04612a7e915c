// A plain table for native tests.
#pragma once

#include <string>

#include "base/types.h"

namespace springtide {

inline TableSpec spec(TableId id, uint32_t dim, OptimKind kind) {
  TableSpec t;
  t.id = id;
  t.name = "t" + std::to_string(id);
  t.dim = dim;
  t.optim.kind = kind;
  return t;
}

}  // namespace springtide
