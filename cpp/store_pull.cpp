// Reading rows. A rolling pipeline hides memory latency: find the index line and prefetch it; later read it
// and prefetch the row; later copy the row.
#include "prefetch.h"
#include "store_impl.h"

namespace springtide {

namespace {

constexpr size_t kAhead = 16;  // keys between two stages: enough misses in flight to fill the line buffers
constexpr size_t kRing = 2 * kAhead;

struct InFlight {
  Slot* slot;
  const Cell* home;
  const uint8_t* row;  // nullptr: missing
};

}  // namespace

void StoreImpl::pull(std::span<const TableId> tables, std::span<const Key> keys, float* out) {
  check_process();
  CallPlan& plan = CallPlan::of_this_thread();
  plan.begin();
  plan.group(tables, keys, out, [this](TableId id) { return TableUse(table(id)); });
  for_stripes(keys.size(), [&](uint32_t number) {
    std::span<const Item> items = plan.stripe(number);
    if (items.empty()) return;
    std::lock_guard hold(stripes_[number].lock);
    pull_stripe(items);
  });
}

void StoreImpl::pull_stripe(std::span<const Item> items) {
  InFlight ring[kRing];
  size_t n = items.size();
  for (size_t i = 0; i < n + 2 * kAhead; ++i) {
    if (i < n) {
      InFlight& f = ring[i % kRing];
      f.slot = &index_.slot(slot_number(items[i].hash));
      ++f.slot->requests;
      f.home = index_.home(*f.slot, items[i].hash);
      prefetch_read(f.home);
    }
    if (size_t j = i - kAhead; j < n) {
      InFlight& f = ring[j % kRing];
      const TableUse& use = *items[j].use;
      const Cell* cell = index_.find(*f.slot, items[j].hash, use.id, f.home);
      f.row = nullptr;
      if (is_row(cell, use)) {
        f.row = use.weights(handle_of(cell->meta));
        prefetch_lines(f.row, use.weight_bytes);
      }
    }
    if (size_t k = i - 2 * kAhead; k < n) {
      const TableUse& use = *items[k].use;
      const uint8_t* row = ring[k % kRing].row;
      if (row != nullptr) {
        read_row(use.dtype, row, items[k].data, use.dim);
      } else {
        use.table->read_init(items[k].hash, items[k].data);
      }
    }
  }
}

}  // namespace springtide
