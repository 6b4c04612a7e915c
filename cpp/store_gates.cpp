// Which slots a store answers for: open ones. Closing is part of the critical section that copies a slot for
// the last time, opening of the one that imports it, so that no change is lost between two owners.
#include "store_impl.h"

namespace springtide {

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
