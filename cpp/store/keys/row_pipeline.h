// Software-pipelined walk of pull and push over keys, in four stages a few keys apart: prefetch the home line
// of the index; read it and prefetch the row (or, of a full line, the neighbour); read the neighbour and
// prefetch the row; process the row. In: a source of items of one stripe, its lock held. Out: calls of
// `locate` and `finish`.
#pragma once

#include <algorithm>

#include "base/hash.h"
#include "base/prefetch.h"
#include "store/index/slot_index.h"
#include "store/keys/call_plan.h"

namespace springtide {

constexpr size_t kGroup = 16;

struct alignas(64) InFlight {
  Item item;
  Slot* slot;
  const Cell* home;
  uint8_t* weights;  // nullptr: no such row
  float *vectors, *number;
};

// Items that were grouped before.
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

// Items made from the caller's arrays on the way, up to the first key of another stripe.
struct StreamedItems {
  const TableId* tables;
  const Key* keys;
  size_t at, count;
  float* data;
  const TableUse* const* use_by_id;
  uint32_t stripe = 0;

  uint32_t stripe_at(size_t place) const { return stripe_of(hash_key(tables[place], keys[place])); }
  uint32_t stripe_ahead() const { return stripe_at(at); }
  // Rows up to here, of one length, are done.
  void passed(size_t place, uint32_t dim) {
    data += (place - at) * dim;
    at = place;
  }
  // Leaves the next keys of one stripe to somebody else.
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

// Keys go through the stages in groups. One group is at each stage, so that what it asked for has arrived
// when it comes to the next; enough misses are in flight to keep the line buffers full.
struct Group {
  InFlight keys[kGroup];
  size_t count = 0;
  uint8_t overflown[kGroup];  // whose cell is not in its home line
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

// `locate` gets the cell, or nullptr where there is none, before the row is needed; `finish` comes later, in
// order.
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

}  // namespace springtide
