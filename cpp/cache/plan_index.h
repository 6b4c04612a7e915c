// Lookup of a key in the lists of a CachePlan. Used by cached_backend.h for every key of a step.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "cache/cache_plan.h"

namespace springtide {

enum class PlannedUse : uint8_t {
  none,  // the plan does not speak of it
  hold,  // trained here: the image is in the cache, or received from another rank before the step
  hold_pull,
  value,  // trained here, kept by another rank, whose value was received before the step
  pass_hit,
  pass_pull,
};

class PlanIndex {
 public:
  explicit PlanIndex(const CachePlan& plan) {
    const size_t keys =
        plan.hits() + plan.pulls() + CachePlan::rows_of(plan.receives) + CachePlan::rows_of(plan.value_receives);
    cells_.resize(std::bit_ceil(2 * keys + 2));
    add(plan.hold_hit, PlannedUse::hold);
    for (const PeerRows& from : plan.receives) add(from.rows, PlannedUse::hold);
    for (const PeerRows& from : plan.value_receives) add(from.rows, PlannedUse::value);
    add(plan.hold_pull, PlannedUse::hold_pull);
    add(plan.pass_hit, PlannedUse::pass_hit);
    add(plan.pass_pull, PlannedUse::pass_pull);
    for (const PeerRows& to : plan.gradient_sends) {
      for (size_t i = 0; i < to.rows.size(); ++i)
        cells_[place_of(hash_key(to.rows.tables[i], to.rows.keys[i]), to.rows.tables[i])].given = true;
    }
  }

  PlannedUse of(TableId table, Key key) const { return at(table, key).use; }
  // Whether its gradient goes to the rank that keeps the row.
  bool given(TableId table, Key key) const { return at(table, key).given; }

 private:
  struct Cell {
    uint64_t hash = 0;
    TableId table = 0;
    PlannedUse use = PlannedUse::none;
    bool given = false;
  };

  const Cell& at(TableId table, Key key) const { return cells_[place_of(hash_key(table, key), table)]; }
  size_t place_of(uint64_t hash, TableId table) const {
    const size_t mask = cells_.size() - 1;
    size_t at = hash & mask;
    while (cells_[at].use != PlannedUse::none && (cells_[at].hash != hash || cells_[at].table != table))
      at = (at + 1) & mask;
    return at;
  }
  void add(const PlanKeys& rows, PlannedUse use) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t hash = hash_key(rows.tables[i], rows.keys[i]);
      cells_[place_of(hash, rows.tables[i])] = {hash, rows.tables[i], use};
    }
  }

  std::vector<Cell> cells_;
};

}  // namespace springtide
