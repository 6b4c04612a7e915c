// How pull and push walk over the keys of one stripe: a software pipeline of four stages. 1: prefetch the home line of
// the index. 2: read the home line and prefetch the row, or the neighbour line if the home line is full. 3: read the
// neighbour and prefetch the row. 4: process the row.
#pragma once

#include <algorithm>

#include "base/cpu.h"
#include "base/hash.h"
#include "store/index/cell.h"
#include "store/index/row_pool.h"
#include "store/index/slot_index.h"
#include "store/keys/call_plan.h"

namespace springtide {

constexpr size_t kGroup = 16;

struct alignas(64) InFlight {
  Item item;
  Slot* slot;
  const Cell* home;
  uint8_t* weights;  // nullptr if the key has no row
  float *vectors, *number;
};

// A source of items that were grouped before.
struct GroupedItems {
  std::span<const Item> items;
  size_t at = 0;

  size_t fill(InFlight* keys) {
    const size_t n = std::min(kGroup, items.size() - at);
    for (size_t i = 0; i < n; ++i) keys[i].item = items[at + i];
    at += n;
    return n;
  }
};

// A source that makes items from the caller's arrays when they are needed, up to the first key of a different stripe.
struct StreamedItems {
  const TableId* tables;
  const Key* keys;
  size_t at, count;
  float* data;
  const TableUse* const* use_by_id;
  uint32_t stripe = 0;

  uint32_t stripe_at(size_t place) const { return stripe_of(hash_key(tables[place], keys[place])); }
  uint32_t stripe_ahead() const { return stripe_at(at); }
  // Advances to `place`. Each row before it has `dim` floats.
  void passed(size_t place, uint32_t dim) {
    data += (place - at) * dim;
    at = place;
  }
  // Skips the next keys of one stripe and returns a source for them.
  StreamedItems skip_stripe() {
    StreamedItems skipped = *this;
    for (; at < count && stripe_ahead() == skipped.stripe; ++at) data += use_by_id[tables[at]]->dim;
    skipped.count = at;
    return skipped;
  }
  size_t fill(InFlight* keys_out) {
    const size_t most = std::min(kGroup, count - at);
    const TableId* table = tables + at;
    const Key* key = keys + at;
    float* floats = data;
    size_t n = 0;
    for (; n < most; ++n) {
      uint64_t hash = hash_key(table[n], key[n]);
      if (stripe_of(hash) != stripe) break;
      const TableUse* use = use_by_id[table[n]];
      keys_out[n].item = Item{hash, use, floats};
      floats += use->dim;
    }
    data = floats;
    at += n;
    return n;
  }
};

// Keys pass through the stages in groups, one group per stage. The lines that a group prefetches have arrived when the
// group reaches the next stage. Enough cache misses are in flight to keep the line buffers full.
struct Group {
  InFlight keys[kGroup];
  size_t count = 0;
  uint8_t overflown[kGroup];  // keys with a cell outside of the home line
  size_t overflows = 0;
};

template <class Source>
void ask_for_home(SlotIndex& index, uint32_t slot_shift, Source& source, Group& group) {
  const size_t n = group.count = source.fill(group.keys);
  for (size_t i = 0; i < n; ++i) {
    InFlight& f = group.keys[i];
    f.slot = &index.slot(static_cast<uint32_t>(f.item.hash >> slot_shift));
    ++f.slot->requests;
    f.home = index.home(*f.slot, f.item.hash);
    prefetch_read(f.home);
  }
}

template <class Locate>
void read_home(const SlotIndex& index, Group& group, Locate locate) {
  size_t overflows = 0;
  for (size_t i = 0; i < group.count; ++i) {
    InFlight& f = group.keys[i];
    bool later = false;
    Cell* cell = index.find_home(f.item.hash, f.item.use->id, f.home, later);
    if (later) [[unlikely]] {
      prefetch_read(SlotIndex::neighbour(f.home));
      group.overflown[overflows++] = static_cast<uint8_t>(i);
    } else {
      locate(f, cell);
    }
  }
  group.overflows = overflows;
}

template <class Locate>
void read_neighbours(SlotIndex& index, Group& group, Locate locate) {
  for (size_t i = 0; i < group.overflows; ++i) {
    InFlight& f = group.keys[group.overflown[i]];
    locate(f, index.find_next(*f.slot, f.item.hash, f.item.use->id, f.home));
  }
}

// Calls `locate` with each cell (nullptr if the key has none) before the row is needed. Calls `finish` later, in the
// same order.
template <class Source, class Locate, class Finish>
void walk(SlotIndex& index, uint32_t slot_shift, Source& source, Locate locate, Finish finish) {
  constexpr size_t kStages = 4;
  Group ring[kStages];
  for (size_t at = 0, idle = 0; idle < kStages; ++at) {
    Group& fresh = ring[at % kStages];
    ask_for_home(index, slot_shift, source, fresh);
    idle = fresh.count == 0 ? idle + 1 : 0;
    read_home(index, ring[(at - 1) % kStages], locate);
    read_neighbours(index, ring[(at - 2) % kStages], locate);
    const Group& done = ring[(at - 3) % kStages];
    for (size_t i = 0; i < done.count; ++i) finish(done.keys[i]);
  }
}

// Pull and push over the keys of one stripe for the common case: all tables of the call have float32 rows of one length
// without ttl. The stages are the same as above, with less state per key. The caller holds the stripe's lock.
struct UniformRow {
  uint64_t hash;
  const Cell* home;
  uint8_t* weights;  // nullptr if the key has no row
};

// The keys of a call, in slot order.
struct UniformKeys {
  const TableId* tables;
  const Key* keys;

  uint32_t stripe(size_t at) const { return stripe_of(hash_key(tables[at], keys[at])); }
};

// Keys go through the stages in groups, because several prefetches in a row arrive sooner than prefetches between other
// work.
struct UniformGroup {
  static constexpr size_t kKeys = 24;

  UniformRow keys[kKeys];
  size_t first = 0, count = 0;
  uint8_t overflown[kKeys];  // keys not found in their home line
  size_t overflows = 0;

  // Takes the next keys of one stripe. This loop is separate, so that the constants of the hash stay in registers.
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

// Processes keys from `from` to the first key of another stripe, but at most to `end`. Returns the position after these
// keys. `found(key, cell, place)` sets the address of the row and prefetches it. `finish(key, place)` is called later,
// in the same order. `place` is the key's index in the call.
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
