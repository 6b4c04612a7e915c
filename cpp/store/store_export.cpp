// Copies a slot out, in one piece or in parts (slot_copy.h). Under the stripe's lock, it selects and counts cells, and
// then copies each row directly to its place in the image. Memory for the image is allocated outside of the lock.
#include <cstring>

#include "base/cpu.h"
#include "slots/slot_batch.h"
#include "slots/slot_copy.h"
#include "store/store.h"

namespace springtide {

// Selects rows of one slot at one moment (all rows, rows changed after a cut, or a range of places), and writes them
// straight into an image. Use this function under the stripe's lock.
class SlotExport {
 public:
  // Reuses its memory from call to call.
  static SlotExport& of_this_thread() {
    thread_local SlotExport mine;
    return mine;
  }

  // Selects all changes after a cut, or everything.
  void pick(Store& store, uint32_t number, uint64_t since_cut) {
    forget();
    const uint32_t boundary = boundary_of(store, number, since_cut);
    store.index_.for_each(store.index_.slot(number), [&](const Cell& cell) {
      if (stamp_of(cell.meta) > boundary) add(store, cell);
    });
    if (!full) add_gone(store, number, boundary);
  }

  // Selects the rows at these places, but no removed rows.
  void pick_part(Store& store, uint32_t number, uint64_t since_cut, const Places& places) {
    forget();
    const uint32_t boundary = boundary_of(store, number, since_cut);
    store.index_.for_places(store.index_.slot(number), places, [&](const Cell& cell) {
      if (stamp_of(cell.meta) > boundary) add(store, cell);
    });
  }

  // Selects the rows that complete the parts, which were copied after the mark: rows that changed later, and rows that
  // were removed or have expired.
  void pick_later(Store& store, uint32_t number, uint32_t mark) {
    forget();
    full = false;
    const bool ages = store.any_ttl_.load(std::memory_order_relaxed);
    store.index_.for_each(store.index_.slot(number), [&](const Cell& cell) {
      if (ages && add_if_expired(store, cell)) return;
      if (stamp_of(cell.meta) > mark) add(store, cell);
    });
    add_gone(store, number, mark);
  }

  // Selects only rows that were removed after a cut.
  void pick_gone(Store& store, uint32_t number, uint64_t since_cut) {
    forget();
    const uint32_t boundary = boundary_of(store, number, since_cut);
    if (!full) add_gone(store, number, boundary);
  }

  uint64_t entries() const { return cells_.size() + gone_.size(); }

  size_t bytes(const SlotImage& about) const { return ImageWriter::bytes_of_image(about, shapes_); }

  void write(Store& store, const SlotImage& about, ImageWriter& to) {
    to.begin(about, shapes_);
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (i + kAhead < cells_.size()) ask_for(store, cells_[i + kAhead]);
      write_cell(store, cells_[i], to);
    }
    for (const Tombstone& gone : gone_) put(to.columns(place_[gone.table]).gone, gone.hash);
  }

  // Writes the addresses of the selected rows instead of a copy.
  void refer(Store& store, SlotReference& to) {
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
  template <class T>
  static void put(uint8_t*& at, T value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  }

  static void put_bytes(uint8_t*& at, const void* from, size_t bytes) {
    if (bytes == 0) return;
    std::memcpy(at, from, bytes);
    at += bytes;
  }

  // Returns the boundary. Rows with a later stamp are selected. Sets `full`.
  uint32_t boundary_of(Store& store, uint32_t number, uint64_t since_cut) {
    const uint32_t boundary = since_cut == 0 ? 0 : store.clock.boundary(since_cut);
    full = since_cut == 0 || boundary < store.histories_[number].complete_from;
    return full ? 0 : boundary;
  }

  void add(Store& store, const Cell& cell) {
    Table& table = store.table(store.index_.table_of(cell.meta));
    if (store.expired(cell.meta, table)) return;
    TableShape& shape = shape_of(table);
    ++(is_candidate(cell.meta) ? shape.waiting : shape.rows);
    cells_.push_back(cell);
  }

  bool add_if_expired(Store& store, const Cell& cell) {
    Table& table = store.table(store.index_.table_of(cell.meta));
    if (!store.expired(cell.meta, table)) return false;
    ++shape_of(table).gone;
    gone_.push_back({cell.hash, table.spec.id, 0});
    return true;
  }

  void add_gone(Store& store, uint32_t number, uint32_t boundary) {
    for (const Tombstone& gone : store.histories_[number].gone) {
      if (gone.tick <= boundary) continue;
      ++shape_of(store.table(gone.table)).gone;
      gone_.push_back(gone);
    }
  }

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
      shapes_.push_back(
          {{table.spec.id, table.dim, table.spec.dtype, table.spec.optim.kind, table.optimizer.state_floats()}});
    }
    return shapes_[place];
  }

  static void ask_for(Store& store, const Cell& cell) {
    if (is_candidate(cell.meta)) return;
    Table& table = store.table(store.index_.table_of(cell.meta));
    prefetch_lines(table.rows.weights(handle_of(cell.meta)), table.weight_bytes);
    if (table.vector_bytes != 0) prefetch_lines(table.rows.vectors(handle_of(cell.meta)), table.vector_bytes);
  }

  void write_cell(Store& store, const Cell& cell, ImageWriter& to) {
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

  void refer_to(Store& store, const Cell& cell, SlotReference& to) {
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

  // how many rows are prefetched before they are copied, because rows are scattered
  static constexpr size_t kAhead = 8;
  static constexpr uint16_t kNowhere = 0xffff;
  std::vector<uint16_t> place_ = std::vector<uint16_t>(size_t{kNoTable} + 1, kNowhere);  // by table
  std::vector<TableShape> shapes_;
  std::vector<Cell> cells_;
  std::vector<Tombstone> gone_;
};

uint64_t Store::write_image(uint32_t number, uint64_t since_cut, ImageWriter& to, bool close, uint64_t most_bytes) {
  check_slot(number);
  SlotExport& slot = SlotExport::of_this_thread();
  for (bool written = false; !written;) {
    size_t bytes = 0;
    {
      std::lock_guard hold(stripe_of_slot(number).lock);
      if (close) mark_closed(number, true);
      if (since_cut == 0 && index_.slot(number).row_bytes > most_bytes) return index_.slot(number).row_bytes;
      slot.pick(*this, number, since_cut);
      const SlotImage about{number, options.slots, options.seed, clock.now(), slot.full, {}, identities_of(number)};
      bytes = slot.bytes(about);
      if (bytes > most_bytes) return bytes;
      written = to.has_room(bytes);
      if (written) slot.write(*this, about, to);
    }
    if (!written) to.reserve_more(bytes);  // then select again, because rows may have been added
  }
  return 0;
}

std::vector<uint8_t> Store::export_slot(uint32_t slot, uint64_t since_cut) {
  ImageWriter image;
  export_slot(slot, since_cut, image);
  return {image.bytes().begin(), image.bytes().end()};
}

void Store::export_slot(uint32_t slot, uint64_t since_cut, ImageWriter& to) {
  write_image(slot, since_cut, to);
  to.finish();
}

void Store::close_and_export(uint32_t slot, uint64_t since_cut, ImageWriter& to) {
  write_image(slot, since_cut, to, true);
  to.finish();
}

void Store::refer(uint32_t number, SlotReference& to) {
  check_slot(number);
  SlotExport& slot = SlotExport::of_this_thread();
  std::lock_guard hold(stripe_of_slot(number).lock);
  if (closed_[number] == 0) throw BadInput("slot ", number, " is open: its rows may change");
  slot.pick(*this, number, 0);
  to.about = {number, options.slots, options.seed, clock.now(), true, {}, identities_of(number)};
  slot.refer(*this, to);
}

uint64_t Store::dirty_rows(uint32_t number, uint64_t since_cut) {
  check_slot(number);
  SlotExport& slot = SlotExport::of_this_thread();
  std::lock_guard hold(stripe_of_slot(number).lock);
  slot.pick(*this, number, since_cut);
  return slot.entries();
}

bool Store::copy_slot(uint32_t number, uint64_t since_cut, SlotCopy& to, size_t part_bytes) {
  check_slot(number);
  if (!to.goes_on(number, since_cut)) {
    to.parts_ = 0;
    const uint64_t bytes = write_image(number, since_cut, to.whole_, false, part_bytes);
    if (bytes == 0) {
      to.complete_at_once();
      return true;
    }
    to.begin(number, since_cut, bytes, part_bytes);
  }
  if (to.next_ < to.parts_) {
    copy_part(to);
    return false;
  }
  to.parts_ = 0;  // the copy is no longer in progress
  if (!copy_end(to)) {
    write_image(number, since_cut, to.whole_);
    to.complete_at_once();
  }
  return true;
}

void Store::copy_part(SlotCopy& to) {
  SlotExport& slot = SlotExport::of_this_thread();
  ImageWriter& image = to.images_[to.next_];
  const Places places = to.places();
  for (bool written = false; !written;) {
    size_t bytes = 0;
    {
      std::lock_guard hold(stripe_of_slot(to.slot_).lock);
      slot.pick_part(*this, to.slot_, to.since_cut_, places);
      const SlotImage about{to.slot_, options.slots, options.seed, 0, slot.full, {}, {}};
      bytes = slot.bytes(about);
      written = image.has_room(bytes);
      if (written && to.next_ == 0) {
        to.mark_ = clock.mark();
        to.full_ = slot.full;
      }
      if (written) slot.write(*this, about, image);
    }
    if (!written) image.reserve_more(bytes);
  }
  ++to.next_;
}

// Returns false if the parts cannot be completed, because the slot was cleared or imported, tombstones are missing, or
// ticks were renumbered.
bool Store::copy_end(SlotCopy& to) {
  SlotExport& slot = SlotExport::of_this_thread();
  size_t more = 0, tombstones = 0;
  do {
    to.later_.make_room_for(more);
    to.end_.make_room_for(tombstones);
    std::lock_guard hold(stripe_of_slot(to.slot_).lock);
    if (!clock.knows(to.mark_) || to.mark_.boundary < histories_[to.slot_].complete_from) return false;
    SlotImage about{to.slot_, options.slots, options.seed, clock.now(), true, {}, {}};
    slot.pick_later(*this, to.slot_, to.mark_.boundary);
    more = slot.bytes(about);
    if (to.later_.has_room(more)) slot.write(*this, about, to.later_);
    slot.pick_gone(*this, to.slot_, to.since_cut_);
    if (slot.full != to.full_) return false;
    about.full = slot.full;
    about.identities = identities_of(to.slot_);
    tombstones = slot.bytes(about);
    if (to.end_.has_room(tombstones)) slot.write(*this, about, to.end_);
  } while (!to.later_.has_room(more) || !to.end_.has_room(tombstones));
  std::vector<SlotImage> parts;
  for (uint32_t i = 0; i < to.next_; ++i) parts.push_back(view(to.images_[i].bytes()));
  merge(parts, view(to.later_.bytes()), view(to.end_.bytes()), to.image_);
  to.complete(to.end_);
  return true;
}

}  // namespace springtide
