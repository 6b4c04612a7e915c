// How pull and push walk over keys: four stages a few keys apart, so that memory is asked for before it is
// needed. Prefetch the home line of the index; read it and prefetch the row (or, of a full line, the
// neighbour it overflows to); read the neighbour and prefetch the row; do the row's work. In: a source of
// items of one stripe (its lock held). Out: calls of `locate` and `finish`.
#pragma once

#include "call_plan.h"
#include "hash.h"
#include "prefetch.h"
#include "slot_index.h"

namespace springtide {

struct alignas(64) InFlight {
  Item item;
  Slot* slot;
  const Cell* home;  // nullptr: need not be read again
  uint8_t* weights;  // nullptr: no such row
  float *vectors, *number;
};

// Items that were grouped before.
struct GroupedItems {
  std::span<const Item> items;
  size_t at = 0;

  bool next(Item& item) {
    if (at == items.size()) return false;
    item = items[at++];
    return true;
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

  uint32_t stripe_ahead() const { return stripe_of(hash_key(tables[at], keys[at])); }
  bool next(Item& item) {
    if (at == count) return false;
    uint64_t hash = hash_key(tables[at], keys[at]);
    if (stripe_of(hash) != stripe) return false;
    const TableUse* use = use_by_id[tables[at]];
    item = Item{hash, use, data};
    data += use->dim;
    ++at;
    return true;
  }
};

// Keys between two stages: enough misses in flight to keep the line buffers full.
constexpr size_t kReadHome = 16, kReadNeighbour = 24, kFinish = 40;
constexpr size_t kRing = 64;

// `locate` gets the cell, or nullptr where there is none, before the row is needed; `finish` comes later, in
// order.
template <class Source, class Locate, class Finish>
void walk(SlotIndex& index, uint32_t slot_shift, Source& source, Locate locate, Finish finish) {
  InFlight ring[kRing];
  size_t fed = 0;
  bool more = true;
  for (size_t i = 0;; ++i) {
    InFlight& f = ring[i % kRing];
    if (more && (more = source.next(f.item))) {
      ++fed;
      f.slot = &index.slot(static_cast<uint32_t>(f.item.hash >> slot_shift));
      ++f.slot->requests;
      f.home = index.home(*f.slot, f.item.hash);
      prefetch_read(f.home);
    }
    if (i - kReadHome < fed) {
      InFlight& g = ring[(i - kReadHome) % kRing];
      bool later = false;
      Cell* cell = index.find_home(g.item.hash, g.item.use->id, g.home, later);
      if (later) [[unlikely]] {
        prefetch_read(SlotIndex::neighbour(g.home));
      } else {
        g.home = nullptr;
        locate(g, cell);
      }
    }
    if (i - kReadNeighbour < fed) {
      InFlight& g = ring[(i - kReadNeighbour) % kRing];
      if (g.home != nullptr) [[unlikely]]
        locate(g, index.find_slowly(*g.slot, g.item.hash, g.item.use->id));
    }
    if (i < kFinish) continue;
    if (i - kFinish >= fed) return;
    finish(ring[(i - kFinish) % kRing]);
  }
}

}  // namespace springtide
