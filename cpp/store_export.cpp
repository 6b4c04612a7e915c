// Copying a slot out: its cells are picked and counted, then each row goes straight to its place in the
// image, all under the stripe's lock, which is held for little more than one copy of the bytes; new memory
// for them is had outside of it.
#include <string>
#include <vector>

#include "prefetch.h"
#include "slot_reference.h"
#include "store_impl.h"

namespace springtide {

namespace {

constexpr size_t kAhead = 8;  // rows asked for before they are copied: they lie anywhere

template <class T>
void put(uint8_t*& at, T value) {
  std::memcpy(at, &value, sizeof value);
  at += sizeof value;
}

void put_bytes(uint8_t*& at, const void* from, size_t bytes) {
  if (bytes == 0) return;
  std::memcpy(at, from, bytes);
  at += bytes;
}

}  // namespace

// One slot at one moment; to be used under its stripe's lock. Kept by a thread for its memory.
class SlotExport {
 public:
  // What changed after a cut, or everything.
  void pick(StoreImpl& store, uint32_t number, uint64_t since_cut) {
    forget();
    const SlotHistory& history = store.histories_[number];
    uint32_t boundary = since_cut == 0 ? 0 : store.clock.boundary(since_cut);
    full = since_cut == 0 || boundary < history.complete_from;
    store.index_.for_each(store.index_.slot(number), [&](const Cell& cell) {
      if (!full && stamp_of(cell.meta) <= boundary) return;
      Table& table = store.table(store.index_.table_of(cell.meta));
      if (store.expired(cell.meta, table)) return;
      TableShape& shape = shape_of(table);
      ++(is_candidate(cell.meta) ? shape.waiting : shape.rows);
      cells_.push_back(cell);
    });
    for (const Gone& gone : history.gone) {
      if (full || gone.tick <= boundary) continue;
      ++shape_of(store.table(gone.table)).gone;
      gone_.push_back(gone);
    }
  }

  uint64_t entries() const { return cells_.size() + gone_.size(); }

  size_t bytes(const SlotImage& about) const { return ImageWriter::bytes_of_image(about, shapes_); }

  void write(StoreImpl& store, const SlotImage& about, ImageWriter& to) {
    to.begin(about, shapes_);
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (i + kAhead < cells_.size()) ask_for(store, cells_[i + kAhead]);
      write_cell(store, cells_[i], to);
    }
    for (const Gone& gone : gone_) put(to.columns(place_[gone.table]).gone, gone.hash);
  }

  // Where they lie, instead of a copy of them.
  void refer(StoreImpl& store, SlotReference& to) {
    to.tables.assign(shapes_.size(), {});
    for (size_t i = 0; i < shapes_.size(); ++i) {
      Table& table = store.table(shapes_[i].id);
      to.tables[i].shape = shapes_[i];
      to.tables[i].vector_bytes = table.vector_bytes;
      to.tables[i].number_bytes = table.number_bytes;
    }
    for (const Cell& cell : cells_) refer_to(store, cell, to);
  }

  bool full = true;

 private:
  void forget() {
    for (const TableShape& shape : shapes_) place_[shape.id] = kNowhere;
    shapes_.clear();
    cells_.clear();
    gone_.clear();
  }

  TableShape& shape_of(const Table& table) {
    uint16_t& place = place_[table.spec.id];
    if (place == kNowhere) {
      place = static_cast<uint16_t>(shapes_.size());
      shapes_.push_back({table.spec.id, table.dim, table.spec.dtype, table.spec.optim.kind,
                         table.optimizer.state_floats(), 0, 0, 0});
    }
    return shapes_[place];
  }

  static void ask_for(StoreImpl& store, const Cell& cell) {
    if (is_candidate(cell.meta)) return;
    Table& table = store.table(store.index_.table_of(cell.meta));
    prefetch_lines(table.rows.weights(handle_of(cell.meta)), table.weight_bytes);
    if (table.vector_bytes != 0) prefetch_lines(table.rows.vectors(handle_of(cell.meta)), table.vector_bytes);
  }

  void write_cell(StoreImpl& store, const Cell& cell, ImageWriter& to) {
    Table& table = store.table(store.index_.table_of(cell.meta));
    TableColumns& column = to.columns(place_[table.spec.id]);
    uint64_t age = store.clock.age_at(stamp_of(cell.meta));
    if (is_candidate(cell.meta)) {
      put(column.waiting, cell.hash);
      put(column.waiting_ages, age);
      put(column.waiting_counts, candidate_count(cell.meta));
      return;
    }
    RowHandle row = handle_of(cell.meta);
    put(column.rows, cell.hash);
    put(column.row_ages, age);
    put_bytes(column.weights, table.rows.weights(row), table.weight_bytes);
    put_bytes(column.state, table.rows.vectors(row), table.vector_bytes);
    put_bytes(column.state, table.rows.number(row), table.number_bytes);
  }

  void refer_to(StoreImpl& store, const Cell& cell, SlotReference& to) {
    Table& table = store.table(store.index_.table_of(cell.meta));
    TableReference& part = to.tables[place_[table.spec.id]];
    const uint64_t age = store.clock.age_at(stamp_of(cell.meta));
    if (is_candidate(cell.meta)) {
      part.waiting.push_back(cell.hash);
      part.waiting_ages.push_back(age);
      part.waiting_counts.push_back(candidate_count(cell.meta));
      return;
    }
    const auto at = [](const void* row) { return uint64_t{reinterpret_cast<uintptr_t>(row)}; };
    const RowHandle row = handle_of(cell.meta);
    part.rows.push_back(cell.hash);
    part.row_ages.push_back(age);
    part.weights_at.push_back(at(table.rows.weights(row)));
    if (table.vector_bytes != 0) part.vectors_at.push_back(at(table.rows.vectors(row)));
    if (table.number_bytes != 0) part.numbers_at.push_back(at(table.rows.number(row)));
  }

  static constexpr uint16_t kNowhere = 0xffff;
  std::vector<uint16_t> place_ = std::vector<uint16_t>(size_t{kNoTable} + 1, kNowhere);  // by table
  std::vector<TableShape> shapes_;
  std::vector<Cell> cells_;
  std::vector<Gone> gone_;
};

void StoreImpl::write_image(uint32_t number, uint64_t since_cut, ImageWriter& to, bool close) {
  check_slot(number);
  thread_local SlotExport slot;
  for (bool written = false; !written;) {
    size_t bytes = 0;
    {
      std::lock_guard hold(stripe_of_slot(number).lock);
      if (close) mark_closed(number, true);
      slot.pick(*this, number, since_cut);
      const SlotImage about{number, options.slots,        options.seed, clock.now(), slot.full,
                            {},     identities_of(number)};
      bytes = slot.bytes(about);
      written = to.has_room(bytes);
      if (written) slot.write(*this, about, to);
    }
    if (!written) to.make_room(bytes);  // and pick again: rows may have come
  }
  to.finish();
}

void StoreImpl::refer(uint32_t number, SlotReference& to) {
  check_slot(number);
  thread_local SlotExport slot;
  std::lock_guard hold(stripe_of_slot(number).lock);
  if (closed_[number] == 0)
    throw BadInput("slot " + std::to_string(number) + " is open: its rows may change");
  slot.pick(*this, number, 0);
  to.about = {number, options.slots, options.seed, clock.now(), true, {}, identities_of(number)};
  slot.refer(*this, to);
}

uint64_t StoreImpl::dirty_rows(uint32_t number, uint64_t since_cut) {
  check_slot(number);
  thread_local SlotExport slot;
  std::lock_guard hold(stripe_of_slot(number).lock);
  slot.pick(*this, number, since_cut);
  return slot.entries();
}

}  // namespace springtide
