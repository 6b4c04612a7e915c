// Evicts rows whose ttl has passed, and the least recently used rows of a full slot, under the stripe's lock.
#include <algorithm>

#include "base/hash.h"
#include "base/vector_reserve.h"
#include "store/store.h"

namespace springtide {

namespace {

constexpr size_t kCellsPerItem = 4;  // how many cells a push sweeps per key, in whole segments
constexpr size_t kLeastItems = 16;   // a segment costs at least as much as this many keys
constexpr size_t kLeastGone = 1024;

bool older(const Victim& a, const Victim& b) { return a.age != b.age ? a.age < b.age : a.hash < b.hash; }

}  // namespace

void Store::drop(uint32_t number, Cell* cell, Table& table, bool remember) {
  reserve_drop(number, table);
  drop_reserved(number, cell, table, remember);
  settle(number, table);
}

void Store::reserve_drop(uint32_t number, Table& table) {
  table.rows.expect_back(stripe_of_number(number));
  SlotHistory& history = histories_[number];
  springtide::reserve_more(history.gone, ++history.expected);
}

void Store::settle(uint32_t number, Table& table) noexcept {
  table.rows.settle(stripe_of_number(number));
  if (table.share != 0) table.quotas[number].expected = 0;
  histories_[number].expected = 0;
}

void Store::drop_reserved(uint32_t number, Cell* cell, Table& table, bool remember) {
  Slot& slot = index_.slot(number);
  uint64_t hash = cell->hash;
  if (!is_candidate(cell->meta)) {
    table.rows.give_back(stripe_number(hash), handle_of(cell->meta));
    --slot.rows;
    slot.row_bytes -= table.bytes();
    if (table.share != 0) --table.quotas[number].rows;
    table.count.fetch_sub(1, std::memory_order_relaxed);
  }
  index_.erase(slot, cell);
  if (remember) record_tombstone(number, hash, table.spec.id);
}

// The number of tombstones is limited. If some are dropped, exports since older cuts are full.
void Store::record_tombstone(uint32_t number, uint64_t hash, TableId table) {
  if (!clock.has_cuts()) return;
  SlotHistory& history = histories_[number];
  size_t most = std::max<size_t>(kLeastGone, index_.slot(number).cells);
  if (history.gone.size() >= most) {
    auto half = history.gone.begin() + static_cast<ptrdiff_t>(most / 2);
    history.complete_from = (half - 1)->tick;
    history.gone.erase(history.gone.begin(), half);
  }
  history.gone.push_back({hash, table, clock.tick()});
}

bool Store::evict_for_one(Table& table, uint32_t number, PushStats& stats) {
  if (table.share == 0) return false;
  const uint64_t before = stats.evicted;
  while (table.quotas[number].rows >= table.share) {
    evict_oldest(table, number);
    ++stats.evicted;
  }
  return stats.evicted != before;
}

// One scan of the slot finds several rows to evict. If a row was used after the scan, it has another stamp and is
// skipped. Rows that are not on the list were younger at the scan, and rows only get younger. The order is therefore
// exactly by age.
void Store::evict_oldest(Table& table, uint32_t number) {
  Slot& slot = index_.slot(number);
  std::vector<Victim>& list = table.quotas[number].oldest_last;
  while (!list.empty()) {
    Victim next = list.back();
    list.pop_back();
    Cell* cell = index_.find(slot, next.hash, table.spec.id);
    if (cell != nullptr && !is_candidate(cell->meta) && stamp_of(cell->meta) == next.stamp) {
      return drop_reserved(number, cell, table, true);
    }
  }
  index_.for_each(slot, [&](const Cell& cell) {
    if (is_candidate(cell.meta) || !index_.belongs(cell.meta, table.spec.id)) return;
    list.push_back({clock.age_at(stamp_of(cell.meta)), cell.hash, stamp_of(cell.meta)});
  });
  size_t some = std::min<size_t>(list.size(), std::max<uint64_t>(1, table.share / 16));
  std::partial_sort(list.begin(), list.begin() + static_cast<ptrdiff_t>(some), list.end(), older);
  list.resize(some);
  std::reverse(list.begin(), list.end());
  Victim oldest = list.back();
  list.pop_back();
  // Rows of the current age do not become victims, because rows that are created later may have the same age and come
  // before them.
  uint64_t age = clock.age_at(clock.tick());
  std::erase_if(list, [age](const Victim& v) { return v.age >= age; });
  drop_reserved(number, index_.find(slot, oldest.hash, table.spec.id), table, true);
}

uint64_t Store::drop_expired(uint32_t number, const std::vector<Cell>& found) {
  uint64_t rows = 0;
  for (const Cell& copy : found) {
    Table& owner = table(index_.table_of(copy.meta));
    rows += !is_candidate(copy.meta);
    drop(number, index_.find(index_.slot(number), copy.hash, owner.spec.id), owner, true);
  }
  return rows;
}

void Store::sweep(Stripe& stripe, uint32_t number, size_t items, PushStats& stats) {
  uint32_t slots = options.slots / kStripes;
  std::vector<Cell> found;
  stripe.sweep_credit += items;
  while (true) {
    uint32_t slot_at = number * slots + stripe.sweep_slot;
    Slot& slot = index_.slot(slot_at);
    const size_t cost = std::max(kLeastItems, SlotIndex::segment_cells(slot) / kCellsPerItem);
    if (stripe.sweep_credit < cost) return;
    stripe.sweep_credit -= cost;
    found.clear();
    if (closed_[slot_at] != 0) {  // the slot is being handed over, so its rows must not change or move
      stripe.sweep_entry = uint32_t{1} << slot.depth;
    } else if (stripe.sweep_entry < (uint32_t{1} << slot.depth)) {
      stripe.sweep_entry = index_.for_segment(slot, stripe.sweep_entry, [&](const Cell& cell) {
        if (expired(cell.meta, table(index_.table_of(cell.meta)))) found.push_back(cell);
      });
    }
    if (stripe.sweep_entry >= (uint32_t{1} << slot.depth)) {
      stripe.sweep_entry = 0;
      stripe.sweep_slot = (stripe.sweep_slot + 1) % slots;
    }
    stats.evicted += drop_expired(slot_at, found);
  }
}

uint64_t Store::evict(uint64_t at) {
  check_process();
  clock.advance(at);
  std::atomic<uint64_t> evicted{0};
  std::vector<Cell> found;
  for (uint32_t number = 0; number < options.slots; ++number) {
    std::lock_guard hold(stripe_of_slot(number).lock);
    if (closed_[number] != 0) continue;  // the slot is closed, as above
    found.clear();
    index_.for_each(index_.slot(number), [&](const Cell& cell) {
      if (expired(cell.meta, table(index_.table_of(cell.meta)))) found.push_back(cell);
    });
    evicted += drop_expired(number, found);
  }
  return evicted;
}

// Locks all stripes and gives every cell the new number of its stamp. The renumbering happens once in millions of
// ticks.
void Store::renumber_ticks() {
  std::vector<std::unique_lock<std::mutex>> holds;
  for (Stripe& stripe : stripes_) holds.emplace_back(stripe.lock);
  if (!clock.nearly_full()) return;  // another thread has already renumbered the ticks
  std::vector<bool> used(size_t{kMaxStamp} + 1);
  for (uint32_t number = 0; number < options.slots; ++number) {
    index_.for_each(index_.slot(number), [&](const Cell& cell) { used[stamp_of(cell.meta)] = true; });
    for (const Tombstone& gone : histories_[number].gone) used[gone.tick] = true;
    used[histories_[number].complete_from] = true;
  }
  std::vector<uint32_t> new_tick;
  clock.renumber(used, new_tick);
  for (uint32_t number = 0; number < options.slots; ++number) {
    index_.for_each(index_.slot(number), [&](Cell& cell) {
      cell.meta = (cell.meta & (kCandidateBit | kHandleMask)) | uint64_t{new_tick[stamp_of(cell.meta)]} << 40;
    });
    for (Tombstone& gone : histories_[number].gone) gone.tick = new_tick[gone.tick];
    histories_[number].complete_from = new_tick[histories_[number].complete_from];
  }
  std::lock_guard declaring(declare_lock_);
  for (const auto& owned : owned_) {
    for (Quota& quota : owned->quotas) quota.oldest_last.clear();
  }
}

}  // namespace springtide
