// Pull and push over keys of one stripe when all tables of the call have float32 rows of one length without
// ttl: the common case. The stages are those of row_pipeline.h with less state per key. The stripe's lock is
// held.
#pragma once

#include <algorithm>

#include "base/hash.h"
#include "base/prefetch.h"
#include "store/index/cell.h"
#include "store/index/row_pool.h"
#include "store/index/slot_index.h"

namespace springtide {

struct UniformRow {
  uint64_t hash;
  const Cell* home;
  uint8_t* weights;  // nullptr: no such row
};

// A call's keys in slot order.
struct UniformKeys {
  const TableId* tables;
  const Key* keys;

  uint32_t stripe(size_t at) const { return stripe_of(hash_key(tables[at], keys[at])); }
};

// Keys go through the stages in groups, not one by one: lines asked for in a row arrive sooner than those
// asked for between other work.
struct UniformGroup {
  static constexpr size_t kKeys = 24;

  UniformRow keys[kKeys];
  size_t first = 0, count = 0;
  uint8_t overflown[kKeys];  // those not found in their home line
  size_t overflows = 0;

  // The next keys of one stripe. A loop of its own: the multipliers of the hash stay in registers.
  __attribute__((noinline)) void fill(const UniformKeys& call, size_t from, size_t end, uint32_t stripe) {
    const TableId* const tables = call.tables + from;
    const Key* const call_keys = call.keys + from;
    const size_t most = std::min(kKeys, end - from);
    uint32_t other = 0;
    for (size_t i = 0; i < most; ++i) {
      keys[i].hash = hash_key(tables[i], call_keys[i]);
      other |= stripe_of(keys[i].hash) ^ stripe;
    }
    first = from;
    count = most;
    if (other == 0) [[likely]]
      return;
    for (count = 0; stripe_of(keys[count].hash) == stripe;) ++count;
  }
};

// `found(key, cell, place)` sets where the row lies and asks for it; `finish(key, place)` comes later, in
// order; `place` is the key's in the call. From `from` to the first key of another stripe, at most to `end`;
// returns where that is.
template <class Found, class Finish>
size_t walk_alike(SlotIndex& index, const uint32_t slot_shift, const UniformKeys call, const size_t from, size_t end,
                  const Found found, const Finish finish) {
  constexpr size_t kStages = 4;
  UniformGroup ring[kStages];
  const uint32_t stripe = call.stripe(from);
  const TableId* const extent_table = index.extent_table();
  size_t next = from;
  for (size_t turn = 0, idle = 0; idle < kStages; ++turn) {
    UniformGroup &asked = ring[turn % kStages], &read = ring[(turn - 1) % kStages],
                 &overflown = ring[(turn - 2) % kStages], &done = ring[(turn - 3) % kStages];
    asked.fill(call, next, end, stripe);
    if (asked.count < UniformGroup::kKeys) end = next + asked.count;
    next += asked.count;
    idle = asked.count == 0 ? idle + 1 : 0;
    for (size_t i = 0, n = asked.count; i < n; ++i) {
      UniformRow& key = asked.keys[i];
      Slot& slot = index.slot(static_cast<uint32_t>(key.hash >> slot_shift));
      ++slot.requests;
      key.home = index.home(slot, key.hash);
      prefetch_read(key.home);
    }
    size_t overflows = 0;
    const TableId* const tables = call.tables + read.first;
    for (size_t i = 0, n = read.count; i < n; ++i) {
      UniformRow& key = read.keys[i];
      if (const Cell* cell = SlotIndex::row_at_home(key.hash, tables[i], key.home, extent_table)) [[likely]] {
        found(key, cell, read.first + i);
      } else {
        read.overflown[overflows++] = static_cast<uint8_t>(i);
        prefetch_read(SlotIndex::neighbour(key.home));
      }
    }
    read.overflows = overflows;
    for (size_t i = 0; i < overflown.overflows; ++i) {
      const size_t at = overflown.overflown[i], place = overflown.first + at;
      UniformRow& key = overflown.keys[at];
      Slot& slot = index.slot(static_cast<uint32_t>(key.hash >> slot_shift));
      const Cell* cell = index.find_next(slot, key.hash, call.tables[place], key.home);
      key.weights = nullptr;
      if (cell != nullptr && !is_candidate(cell->meta)) found(key, cell, place);
    }
    for (size_t i = 0, n = done.count; i < n; ++i) finish(done.keys[i], done.first + i);
  }
  return next;
}

}  // namespace springtide
