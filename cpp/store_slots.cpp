// Whole slots: scanning, accounting, copying in. Copying out: store_export.cpp.
#include <string>

#include "hash.h"
#include "store_impl.h"

namespace springtide {

namespace {

std::string of(const TableSpec& spec) {
  return "slot image: table " + std::to_string(spec.id) + " ('" + spec.name + "')";
}

void check_table(const TableImage& image, const Table& table) {
  if (image.dim != table.dim) {
    throw BadInput(of(table.spec) + " has dim " + std::to_string(image.dim) + " there and " +
                   std::to_string(table.dim) + " here");
  }
  if (image.dtype != table.spec.dtype) throw BadInput(of(table.spec) + " has another dtype there than here");
  if (image.optimizer != table.spec.optim.kind || image.state_floats != table.optimizer.state_floats()) {
    throw BadInput(of(table.spec) + " was trained by " + name_of(image.optimizer) + " with " +
                   std::to_string(image.state_floats) + " floats of state a row; here it is " +
                   name_of(table.spec.optim.kind) + " with " +
                   std::to_string(table.optimizer.state_floats()));
  }
}

}  // namespace

bool StoreImpl::scan(TableId id, uint32_t number, std::vector<Key>& keys, std::vector<float>& rows) {
  check_slot(number);
  Table& wanted = table(id);
  std::lock_guard hold(stripe_of_slot(number).lock);
  if (closed_[number] != 0) return false;
  index_.for_each(index_.slot(number), [&](const Cell& cell) {
    if (is_candidate(cell.meta) || !index_.belongs(cell.meta, id) || expired(cell.meta, wanted)) return;
    keys.push_back(key_of(id, cell.hash));
    rows.resize(rows.size() + wanted.dim);
    read_row(wanted.spec.dtype, wanted.rows.weights(handle_of(cell.meta)),
             rows.data() + rows.size() - wanted.dim, wanted.dim);
  });
  return true;
}

// Everything is checked before the slot is touched.
void StoreImpl::import_image(const SlotImage& image, Into into) {
  check_process();
  if (image.slots != options.slots) {
    throw BadInput("slot image: made with " + std::to_string(image.slots) + " slots, this store has " +
                   std::to_string(options.slots));
  }
  if (image.seed != options.seed) {
    throw BadInput("slot image: made with seed " + std::to_string(image.seed) + ", this store has " +
                   std::to_string(options.seed) + ": rows that do not exist yet would change");
  }
  for (const TableImage& part : image.tables) check_table(part, table(part.id));
  clock.advance(image.clock);
  std::lock_guard hold(stripe_of_slot(image.slot).lock);
  if (into != Into::any && closed_[image.slot] == 0) {
    throw BadInput("slot " + std::to_string(image.slot) + " is open here already: it has one owner");
  }
  if (image.full) forget_rows(image.slot);
  remember(image.slot, image.identities);
  for (const TableImage& part : image.tables) import_table(image.slot, part);
  if (into == Into::closed_then_open) mark_closed(image.slot, false);
}

void StoreImpl::import_table(uint32_t number, const TableImage& part) {
  Table& into = table(part.id);
  Slot& slot = index_.slot(number);
  for (uint64_t hash : part.gone) {
    if (Cell* cell = index_.find(slot, hash, part.id)) drop(number, cell, into, true);
  }
  if (into.share != 0) into.quotas[number].oldest_last.clear();
  TableUse use(into);
  for (size_t i = 0; i < part.rows.size(); ++i) {
    Cell* cell = index_.find(slot, part.rows[i], part.id);
    uint32_t tick = clock.tick_for(part.row_ages[i]);
    RowHandle row = 0;
    if (cell != nullptr && !is_candidate(cell->meta)) {
      row = handle_of(cell->meta);
      cell->meta = row_meta(row, tick);
    } else {
      row = create(Item{part.rows[i], &use, nullptr}, cell, tick);
    }
    std::memcpy(into.rows.weights(row), part.weights.data() + i * into.weight_bytes, into.weight_bytes);
    const uint8_t* state = part.state.data() + i * (into.vector_bytes + into.number_bytes);
    if (into.vector_bytes != 0) std::memcpy(into.rows.vectors(row), state, into.vector_bytes);
    if (into.number_bytes != 0)
      std::memcpy(into.rows.number(row), state + into.vector_bytes, into.number_bytes);
  }
  for (size_t i = 0; i < part.waiting.size(); ++i) {
    Cell* cell = index_.find(slot, part.waiting[i], part.id);
    if (cell != nullptr) drop(number, cell, into, false);
    uint32_t count = std::min(part.waiting_counts[i], kMaxCount);
    index_.insert(slot, part.waiting[i],
                  candidate_meta(part.id, count, clock.tick_for(part.waiting_ages[i])));
  }
}

// No list of what went: exports since an earlier cut become full ones instead.
void StoreImpl::forget_rows(uint32_t number) {
  Slot& slot = index_.slot(number);
  uint32_t stripe = number / (options.slots / kStripes);
  index_.for_each(slot, [&](const Cell& cell) {
    if (is_candidate(cell.meta)) return;
    Table& owner = table(index_.table_of(cell.meta));
    owner.rows.give_back(stripe, handle_of(cell.meta));
    owner.count.fetch_sub(1, std::memory_order_relaxed);
    if (owner.share != 0) owner.quotas[number] = Quota{};
  });
  index_.clear(slot);
  histories_[number] = SlotHistory{{}, clock.tick()};
}

void StoreImpl::clear_slot(uint32_t number) {
  check_slot(number);
  std::lock_guard hold(stripe_of_slot(number).lock);
  forget_rows(number);
  remember(number, {});
}

SlotLoad StoreImpl::load(uint32_t number) {
  check_slot(number);
  std::lock_guard hold(stripe_of_slot(number).lock);
  const Slot& slot = index_.slot(number);
  return {slot.rows, slot.row_bytes + slot.cells * sizeof(Cell), slot.requests};
}

}  // namespace springtide
