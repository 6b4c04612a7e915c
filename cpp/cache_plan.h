// What one worker's cache does around one step, decided by the scheduler for all workers alike.
// In: schedule.h makes one of these per rank and step. Out: a cache executes it and decides nothing itself.
//
// A row is cached by one worker at most, always as its image (weights and optimizer state): the worker that
// trained it alone last. A row that several workers train in one step is summed on the server, and every
// cached copy of it is stale from then on. So a cached row is dirty from the moment it is trained until it is
// written back, and it is written back when another worker trains it next, when it is evicted, or with a
// flush.
//
// The order in which a rank executes the plan of step s:
//   1. with the push of step s - 1, after that step's rows were trained:  write_back, sends, receives
//   2. at the start of step s: the values of pass_hit are read, then the rows of `drop` leave the cache, then
//      the images of hold_pull (from the servers, which have applied step s - 1) and of `receives` enter it
//   3. at the end of step s: gradients of hold_hit, hold_pull and hold_receive are applied in the cache;
//   those of
//      pass_hit and pass_pull are pushed
// The lists of a plan hold no key twice, but for `drop`, which names every pass_hit and every sent row again.
#pragma once

#include <cstdint>
#include <vector>

#include "types.h"

namespace springtide {

// (table, key) pairs. In the order in which the batch first names them; `write_back` and `drop` end with what
// is evicted, oldest first.
struct PlanKeys {
  std::vector<TableId> tables;
  std::vector<Key> keys;

  size_t size() const { return keys.size(); }
  void add(TableId table, Key key) {
    tables.push_back(table);
    keys.push_back(key);
  }
};

// Rows that go straight from worker to worker. Both ends list the same keys in the same order.
struct PeerRows {
  uint32_t peer = 0;  // rank of the other end
  PlanKeys rows;
};

struct CachePlan {
  uint64_t step = 0;  // counted from 1, as in PushMeta
  uint32_t rank = 0;
  // Before the step, with the push of the one before it.
  PlanKeys write_back;             // dirty rows whose images go to the server
  std::vector<PeerRows> sends;     // dirty rows whose images go to another rank instead, by rank
  std::vector<PeerRows> receives;  // the other ends of `sends`, by rank; together they are hold_receive
  // The step.
  PlanKeys drop;       // leave the cache: stale after this step, or evicted to make room
  PlanKeys hold_hit;   // trained here alone, and cached here
  PlanKeys hold_pull;  // trained here alone: the image is pulled and cached
  PlanKeys pass_hit;   // trained by others too; the value is cached here (and in `drop`)
  PlanKeys pass_pull;  // trained by others too, or no room for it: the value is pulled, not the state

  size_t received() const {
    size_t rows = 0;
    for (const PeerRows& from : receives) rows += from.rows.size();
    return rows;
  }
  size_t sent() const {
    size_t rows = 0;
    for (const PeerRows& to : sends) rows += to.rows.size();
    return rows;
  }
  size_t pulls() const { return hold_pull.size() + pass_pull.size(); }     // rows asked of servers
  size_t gradients() const { return pass_hit.size() + pass_pull.size(); }  // pushed at the end of the step
};

}  // namespace springtide
