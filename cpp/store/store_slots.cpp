// Operations on whole slots: scan, load, clear, open, close, import. An import reads the image in place. The import
// sizes the index, then finds or creates rows in bunches, and prefetches rows before it writes them. store_export.cpp
// has the export.
#include "base/cpu.h"
#include "base/hash.h"
#include "store/store.h"

namespace springtide {

namespace {

std::string of(const TableSpec& spec) {
  return "slot image: table " + std::to_string(spec.id) + " ('" + spec.name + "')";
}

constexpr size_t kBunch = 16;  // number of rows to prefetch before the first of them is written

// Caches the last tick, because most rows of an image have the same age as the previous row.
class Ticks {
 public:
  explicit Ticks(AgeClock& clock) : clock_(clock) {}
  uint32_t of(uint64_t age) {
    if (tick_ == 0 || age != age_) {
      tick_ = clock_.tick_for(age);
      age_ = age;
    }
    return tick_;
  }

 private:
  AgeClock& clock_;
  uint64_t age_ = 0;
  uint32_t tick_ = 0;  // 0: none
};

void check_table(const TableImage& image, const Table& table) {
  if (image.dim != table.dim) {
    throw BadInput(of(table.spec), " has dim ", image.dim, " there and ", table.dim, " here");
  }
  if (image.dtype != table.spec.dtype) throw BadInput(of(table.spec), " has another dtype there than here");
  if (image.optimizer != table.spec.optim.kind || image.state_floats != table.optimizer.state_floats()) {
    throw BadInput(of(table.spec), " was trained by ", name_of(image.optimizer), " with ", image.state_floats,
                   " floats of state a row; here it is ", name_of(table.spec.optim.kind), " with ",
                   table.optimizer.state_floats());
  }
}

}  // namespace

bool Store::scan(TableId id, uint32_t number, std::vector<Key>& keys, std::vector<float>& rows) {
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

void Store::reserve_erase(uint32_t number) {
  const uint32_t stripe = stripe_of_number(number);
  index_.for_each(index_.slot(number), [&](const Cell& cell) {
    if (!is_candidate(cell.meta)) table(index_.table_of(cell.meta)).rows.expect_back(stripe);
  });
}

// Records no tombstones. Instead, exports since an earlier cut become full.
void Store::erase_rows(uint32_t number) noexcept {
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

void Store::clear_slot(uint32_t number) {
  check_slot(number);
  std::lock_guard hold(stripe_of_slot(number).lock);
  reserve_erase(number);
  remember(number, {});
  erase_rows(number);
  counts.renew(number);
}

SlotLoad Store::load(uint32_t number) {
  check_slot(number);
  std::lock_guard hold(stripe_of_slot(number).lock);
  const Slot& slot = index_.slot(number);
  return {slot.rows, slot.row_bytes + slot.cells * sizeof(Cell), slot.requests};
}

// Closing and the last copy are one critical section, and so are import and opening. No change is therefore lost
// between two owners.
void Store::mark_closed(uint32_t slot, bool closed) {
  if ((closed_[slot] != 0) == closed) return;
  closed_[slot] = closed ? 1 : 0;
  Stripe& stripe = stripe_of_slot(slot);
  stripe.closed = closed ? stripe.closed + 1 : stripe.closed - 1;
}

void Store::set_closed(uint32_t slot, bool closed) {
  check_slot(slot);
  std::lock_guard hold(stripe_of_slot(slot).lock);
  mark_closed(slot, closed);
}

bool Store::is_open(uint32_t slot) const {
  check_slot(slot);
  std::lock_guard hold(stripe_of_slot(slot).lock);
  return closed_[slot] == 0;
}

void Store::import_closed(uint32_t slot, std::span<const uint8_t> image, bool open) {
  const SlotImage decoded = decode(image);
  throw_if<BadInput>(decoded.slot != slot, "an image of slot ", decoded.slot, " came as that of slot ", slot);
  import_image(decoded, open ? Into::closed_then_open : Into::closed);
}

// Everything is checked before the slot is changed.
void Store::import_image(const SlotImage& image, Into into) {
  check_process();
  throw_if<BadInput>(image.slots != options.slots, "slot image: made with ", image.slots, " slots, this store has ",
                     options.slots);
  throw_if<BadInput>(image.seed != options.seed, "slot image: made with seed ", image.seed, ", this store has ",
                     options.seed, ": rows that do not exist yet would change");
  for (const TableImage& part : image.tables) check_table(part, table(part.id));
  if (clock.nearly_full()) renumber_ticks();  // every age in the image may need a new tick
  clock.advance(image.clock);
  std::lock_guard hold(stripe_of_slot(image.slot).lock);
  throw_if<BadInput>(into != Into::any && closed_[image.slot] == 0, "slot ", image.slot,
                     " is open here already: it has one owner");
  counts.renew(image.slot);
  if (image.full) {
    reserve_erase(image.slot);
    erase_rows(image.slot);
  }
  try {
    uint64_t cells = 0;
    for (const TableImage& part : image.tables) cells += part.rows.size() + part.waiting.size();
    index_.reserve(index_.slot(image.slot), cells);
    for (const TableImage& part : image.tables) import_table(image.slot, part);
    remember(image.slot, image.identities);
  } catch (...) {
    abandon(image.slot);
    throw;
  }
  if (into == Into::closed_then_open) mark_closed(image.slot, false);
}

// Called if memory is short for an image. Leaves the slot empty and closed. If there is no memory even for that, the
// process ends.
void Store::abandon(uint32_t slot) noexcept {
  mark_closed(slot, true);
  reserve_erase(slot);
  remember(slot, {});
  erase_rows(slot);
}

void Store::import_table(uint32_t number, const TableImage& part) {
  Table& into = table(part.id);
  Slot& slot = index_.slot(number);
  for (size_t i = 0; i < part.gone.size(); ++i) {
    if (Cell* cell = index_.find(slot, part.gone[i], part.id)) drop(number, cell, into, true);
  }
  if (into.share != 0) into.quotas[number].oldest_last.clear();
  import_rows(number, part, into);
  Ticks ticks(clock);
  for (size_t i = 0; i < part.waiting.size(); ++i) {
    Cell* cell = index_.find(slot, part.waiting[i], part.id);
    if (cell != nullptr) drop(number, cell, into, false);
    uint32_t count = std::min(part.waiting_counts[i], kMaxCount);
    index_.insert(slot, part.waiting[i], candidate_meta(part.id, count, ticks.of(part.waiting_ages[i])));
  }
}

void Store::import_rows(uint32_t number, const TableImage& part, Table& into) {
  Slot& slot = index_.slot(number);
  Ticks ticks(clock);
  const size_t state_bytes = size_t{into.vector_bytes} + into.number_bytes;
  std::array<RowHandle, kBunch> rows;
  for (size_t first = 0; first < part.rows.size(); first += kBunch) {
    const size_t some = std::min(kBunch, part.rows.size() - first);
    for (size_t i = 0; i < some; ++i) {
      const uint64_t hash = part.rows[first + i];
      const uint32_t tick = ticks.of(part.row_ages[first + i]);
      Cell* cell = index_.find(slot, hash, part.id);
      if (cell != nullptr && !is_candidate(cell->meta)) {
        rows[i] = handle_of(cell->meta);
        cell->meta = row_meta(rows[i], tick);
      } else {
        rows[i] = make_row(into, hash, cell, tick);
      }
      prefetch_lines_to_write(into.rows.weights(rows[i]), into.weight_bytes);
      if (into.vector_bytes != 0) prefetch_lines_to_write(into.rows.vectors(rows[i]), into.vector_bytes);
    }
    for (size_t i = 0; i < some; ++i) {
      const uint8_t* state = part.state.at + (first + i) * state_bytes;
      std::memcpy(into.rows.weights(rows[i]), part.weights.at + (first + i) * into.weight_bytes, into.weight_bytes);
      if (into.vector_bytes != 0) std::memcpy(into.rows.vectors(rows[i]), state, into.vector_bytes);
      if (into.number_bytes != 0) std::memcpy(into.rows.number(rows[i]), state + into.vector_bytes, into.number_bytes);
    }
  }
}

}  // namespace springtide
