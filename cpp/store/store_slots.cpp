// Whole slots: scanning, accounting, forgetting, opening and closing. Copying out: store_export.cpp; in:
// store_import.cpp.
#include "base/hash.h"
#include "store/store_impl.h"

namespace springtide {

bool StoreImpl::scan(TableId id, uint32_t number, std::vector<Key>& keys, std::vector<float>& rows) {
  check_slot(number);
  Table& wanted = table(id);
  std::lock_guard hold(stripe_of_slot(number).lock);
  if (closed_[number] != 0) return false;
  index_.for_each(index_.slot(number), [&](const Cell& cell) {
    if (is_candidate(cell.meta) || !index_.belongs(cell.meta, id) || expired(cell.meta, wanted)) return;
    keys.push_back(key_of(id, cell.hash));
    rows.resize(rows.size() + wanted.dim);
    read_row(wanted.spec.dtype, wanted.rows.weights(handle_of(cell.meta)), rows.data() + rows.size() - wanted.dim,
             wanted.dim);
  });
  return true;
}

void StoreImpl::reserve_erase(uint32_t number) {
  const uint32_t stripe = stripe_of_number(number);
  index_.for_each(index_.slot(number), [&](const Cell& cell) {
    if (!is_candidate(cell.meta)) table(index_.table_of(cell.meta)).rows.expect_back(stripe);
  });
}

// No list of what went: exports since an earlier cut become full ones instead.
void StoreImpl::erase_rows(uint32_t number) noexcept {
  Slot& slot = index_.slot(number);
  uint32_t stripe = stripe_of_number(number);
  index_.for_each(slot, [&](const Cell& cell) {
    if (is_candidate(cell.meta)) return;
    Table& owner = table(index_.table_of(cell.meta));
    owner.rows.give_back(stripe, handle_of(cell.meta));
    owner.count.fetch_sub(1, std::memory_order_relaxed);
    if (owner.share != 0) owner.quotas[number] = Quota{};
  });
  {
    std::lock_guard declaring(declare_lock_);
    for (const auto& owned : owned_) owned->rows.settle(stripe);
  }
  index_.clear(slot);
  histories_[number] = SlotHistory{.gone = {}, .complete_from = clock.tick(), .expected = 0};
}

void StoreImpl::clear_slot(uint32_t number) {
  check_slot(number);
  std::lock_guard hold(stripe_of_slot(number).lock);
  reserve_erase(number);
  remember(number, {});
  erase_rows(number);
  counts.renew(number);
}

SlotLoad StoreImpl::load(uint32_t number) {
  check_slot(number);
  std::lock_guard hold(stripe_of_slot(number).lock);
  const Slot& slot = index_.slot(number);
  return {slot.rows, slot.row_bytes + slot.cells * sizeof(Cell), slot.requests};
}

// A store answers for open slots only. Closing is part of the critical section that copies a slot for the
// last time, opening of the one that imports it, so that no change is lost between two owners.
void StoreImpl::mark_closed(uint32_t slot, bool closed) {
  if ((closed_[slot] != 0) == closed) return;
  closed_[slot] = closed ? 1 : 0;
  Stripe& stripe = stripe_of_slot(slot);
  stripe.closed = closed ? stripe.closed + 1 : stripe.closed - 1;
}

void StoreImpl::set_closed(uint32_t slot, bool closed) {
  check_slot(slot);
  std::lock_guard hold(stripe_of_slot(slot).lock);
  mark_closed(slot, closed);
}

bool StoreImpl::is_open(uint32_t slot) {
  check_slot(slot);
  std::lock_guard hold(stripe_of_slot(slot).lock);
  return closed_[slot] == 0;
}

std::vector<TableSpec> StoreImpl::specs() {
  std::lock_guard hold(declare_lock_);
  std::vector<TableSpec> specs;
  for (const auto& table : owned_) specs.push_back(table->spec);
  return specs;
}

}  // namespace springtide
