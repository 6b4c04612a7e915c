// The keys of one run of rows, hashed and grouped by lock stripe. A push of several runs (tables, dense
// chunks) keeps one per run: a single run is mostly in slot order already. Used by store_once.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "store/keys/call_plan.h"

namespace springtide {

class GroupedRun {
 public:
  void fill(std::span<const TableId> tables, std::span<const Key> keys, float* data, const TableUse* const* use_by_id);
  std::span<const Item> stripe(uint32_t number) const {
    return {items_.data() + begin_[number], items_.data() + begin_[number + 1]};
  }

 private:
  std::vector<Item> items_, unordered_;  // never shrink
  std::array<uint32_t, kStripes + 1> begin_{};
};

}  // namespace springtide
