// CachePlan: what one worker's cache does before, in and after one step. The scheduler (schedule.h) makes one plan per
// rank and step; a cache executes the plan and decides nothing itself.
//
// At most one worker caches a row. The cache holds the row's image (weights and optimizer state). If several workers
// train a row in one step, the server sums its gradients in rank order. With P2P::gradients, one of these workers, the
// row's keeper, sums the gradients instead. A cached row is dirty from its first training until it is written back. A
// dirty row is written back when a different worker trains it, when it is evicted, or by a flush.
//
// A rank executes the plan of step s in this order:
//   1. with the push of step s - 1: write_back, sends, value_sends, and the other ends of these
//   2. at the start of step s: read the values of pass_hit; drop; add the images of hold_pull and `receives`
//   3. at the end of step s: send the gradients of gradient_sends, push those of other keys in pass_hit and pass_pull,
//      and apply those of hold_hit, hold_pull and `receives`, summed with gradient_receives, in the cache
// Each key that a rank trains is in exactly one of hold_hit, hold_pull, receives, value_receives, pass_hit, pass_pull.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace springtide {

// (table, key) pairs in the order of the batch. `write_back` and `drop` end with evicted rows, oldest first.
struct PlanKeys {
  std::vector<TableId> tables;
  std::vector<Key> keys;

  size_t size() const { return keys.size(); }
  void add(TableId table, Key key) {
    tables.push_back(table);
    keys.push_back(key);
  }
};

// Rows that one worker sends directly to a different worker. Sender and receiver have the same keys in the same order.
struct PeerRows {
  uint32_t peer = 0;  // rank of the other worker
  PlanKeys rows;
};

struct CachePlan {
  uint64_t step = 0;  // counted from 1, as in PushMeta
  uint32_t rank = 0;
  // Before the step, with the push of the previous step.
  PlanKeys write_back;                // dirty rows with images that go to the server
  std::vector<PeerRows> sends;        // dirty rows with images that go directly to a different rank, by rank
  std::vector<PeerRows> receives;     // the receiving side of `sends`, by rank: rows that this rank trains and keeps
  std::vector<PeerRows> value_sends;  // rows whose values go to other ranks that also train them
  // the other side of `value_sends`: rows that this rank trains and another rank keeps; see gradient_sends
  std::vector<PeerRows> value_receives;
  // The step.
  PlanKeys drop;       // rows to remove, because they become stale in this step or because new rows need the room
  PlanKeys hold_hit;   // rows that this rank trains and that stay in its cache
  PlanKeys hold_pull;  // rows that this rank trains and caches from now on; their images are pulled
  PlanKeys pass_hit;   // rows that other ranks train too; the value is in this cache, and `drop` contains the row
  // rows that other ranks train too, or for which there is no room; the value is pulled without optimizer state
  PlanKeys pass_pull;
  // After the step.
  // keys whose gradients go to the rank that keeps the row, not to the servers
  std::vector<PeerRows> gradient_sends;
  // the other side of `gradient_sends`, on the keeper, which sums in rank order
  std::vector<PeerRows> gradient_receives;

  static size_t rows_of(const std::vector<PeerRows>& all) {
    size_t rows = 0;
    for (const PeerRows& one : all) rows += one.rows.size();
    return rows;
  }
  size_t sent() const { return rows_of(sends) + rows_of(value_sends) + rows_of(gradient_sends); }
  size_t received() const { return rows_of(receives) + rows_of(value_receives) + rows_of(gradient_receives); }
  size_t hits() const { return hold_hit.size() + pass_hit.size(); }
  size_t pulls() const { return hold_pull.size() + pass_pull.size(); }  // rows requested from servers
  // Returns the number of gradients that are pushed to servers at the end of the step: those of trained rows that no
  // rank keeps.
  size_t gradients() const {
    return pass_hit.size() + pass_pull.size() + rows_of(value_receives) - rows_of(gradient_sends);
  }
};

}  // namespace springtide
