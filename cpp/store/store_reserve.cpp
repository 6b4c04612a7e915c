// Reservation: see store.h.
#include <algorithm>

#include "store/store.h"

namespace springtide {

Reservation::Reservation(Store& store, std::span<const Item> keys, Admission admission) : store_(store), keys_(keys) {
  try {
    for (const Item& item : keys_) expect(item, admission);
  } catch (...) {
    settle();
    throw;
  }
}

// If a key has no cell, gives it a candidate cell with count 0 now, because inserting it later could fail when the
// index grows.
void Reservation::expect(const Item& item, Admission admission) {
  Table& table = *item.use->table;
  const uint32_t number = store_.slot_number(item.hash);
  Slot& slot = store_.index_.slot(number);
  if (table.spec.dtype != DType::f32) half_row(table.dim);
  Cell* cell = store_.index_.find(slot, item.hash, table.spec.id);
  if (cell == nullptr) {
    cell = store_.index_.insert(slot, item.hash, candidate_meta(table.spec.id, 0, store_.clock.tick()));
  }
  const bool is_row = !is_candidate(cell->meta), old = store_.expired(cell->meta, table);
  if (is_row && !old) return;
  if (table.spec.ttl != 0) store_.reserve_drop(number, table);  // the row may expire before the push is applied
  const uint32_t count = old ? 1 : candidate_count(cell->meta) + 1;
  if (admission == Admission::at_once || count >= table.spec.min_count) expect_row(number, table, is_row);
}

// `has_one`: true if the key has a row whose ttl has passed. That row is released first, unless it was already evicted
// for another key.
void Reservation::expect_row(uint32_t number, Table& table, bool has_one) {
  if (table.share == 0) {
    if (!has_one) table.rows.expect(store_.stripe_of_number(number));
    return;
  }
  Quota& quota = table.quotas[number];
  if (!has_one && quota.rows + quota.expected < table.share) {
    ++quota.expected;
    table.rows.expect(store_.stripe_of_number(number));
    return;
  }
  uint64_t evictions = 1;
  if (quota.rows > table.share && quota.expected == 0) {  // an imported image had more rows than the slot's share
    evictions += quota.rows - table.share;
    quota.expected = 1;
  }
  expect_evictions(number, table, evictions);
}

void Reservation::expect_evictions(uint32_t number, Table& table, uint64_t count) {
  Quota& quota = table.quotas[number];
  const uint64_t most = std::max(quota.rows, table.share);  // how many rows a search for the oldest may examine
  if (quota.oldest_last.capacity() < most) quota.oldest_last.reserve(most);
  for (uint64_t i = 0; i < count; ++i) store_.reserve_drop(number, table);
}

void Reservation::settle() noexcept {
  const Table* last = nullptr;
  uint32_t last_slot = 0;
  for (const Item& item : keys_) {
    if (!used_) take_out(item);
    const uint32_t number = store_.slot_number(item.hash);
    if (item.use->table == last && number == last_slot) continue;
    store_.settle(last_slot = number, *item.use->table);
    last = item.use->table;
  }
}

// This reservation has created a candidate with count 0, so the candidate is removed.
void Reservation::take_out(const Item& item) noexcept {
  Slot& slot = store_.index_.slot(store_.slot_number(item.hash));
  Cell* cell = store_.index_.find(slot, item.hash, item.use->table->spec.id);
  if (cell != nullptr && is_candidate(cell->meta) && candidate_count(cell->meta) == 0) {
    store_.index_.erase(slot, cell);
  }
}

}  // namespace springtide
