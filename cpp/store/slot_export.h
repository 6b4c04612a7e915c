// Selects rows of one slot (all, changed after a cut, or a range of places) and writes them straight into an
// image. Used under the stripe's lock by store_export.cpp and store_copy.cpp.
#pragma once

#include <cstring>
#include <vector>

#include "base/prefetch.h"
#include "slots/slot_reference.h"
#include "store/store_impl.h"

namespace springtide {

// One slot at one moment; to be used under its stripe's lock.
class SlotExport {
 public:
  // Its memory is kept from call to call.
  static SlotExport& of_this_thread() {
    thread_local SlotExport mine;
    return mine;
  }

  // What changed after a cut, or everything.
  void pick(StoreImpl& store, uint32_t number, uint64_t since_cut) {
    forget();
    const uint32_t boundary = boundary_of(store, number, since_cut);
    store.index_.for_each(store.index_.slot(number), [&](const Cell& cell) {
      if (stamp_of(cell.meta) > boundary) add(store, cell);
    });
    if (!full) add_gone(store, number, boundary);
  }

  // Of the same what lies at these places, without what went.
  void pick_part(StoreImpl& store, uint32_t number, uint64_t since_cut, const Places& places) {
    forget();
    const uint32_t boundary = boundary_of(store, number, since_cut);
    store.index_.for_places(store.index_.slot(number), places, [&](const Cell& cell) {
      if (stamp_of(cell.meta) > boundary) add(store, cell);
    });
  }

  // What makes parts whole that were copied after the mark: rows changed later, and as gone those that went
  // or are past their ttl by now.
  void pick_later(StoreImpl& store, uint32_t number, uint32_t mark) {
    forget();
    full = false;
    const bool ages = store.any_ttl_.load(std::memory_order_relaxed);
    store.index_.for_each(store.index_.slot(number), [&](const Cell& cell) {
      if (ages && add_if_expired(store, cell)) return;
      if (stamp_of(cell.meta) > mark) add(store, cell);
    });
    add_gone(store, number, mark);
  }

  // Nothing but what went after a cut.
  void pick_gone(StoreImpl& store, uint32_t number, uint64_t since_cut) {
    forget();
    const uint32_t boundary = boundary_of(store, number, since_cut);
    if (!full) add_gone(store, number, boundary);
  }

  uint64_t entries() const { return cells_.size() + gone_.size(); }

  size_t bytes(const SlotImage& about) const { return ImageWriter::bytes_of_image(about, shapes_); }

  void write(StoreImpl& store, const SlotImage& about, ImageWriter& to) {
    to.begin(about, shapes_);
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (i + kAhead < cells_.size()) ask_for(store, cells_[i + kAhead]);
      write_cell(store, cells_[i], to);
    }
    for (const Tombstone& gone : gone_) put(to.columns(place_[gone.table]).gone, gone.hash);
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

  // What is stamped later is wanted; sets `full`.
  uint32_t boundary_of(StoreImpl& store, uint32_t number, uint64_t since_cut) {
    const uint32_t boundary = since_cut == 0 ? 0 : store.clock.boundary(since_cut);
    full = since_cut == 0 || boundary < store.histories_[number].complete_from;
    return full ? 0 : boundary;
  }

  void add(StoreImpl& store, const Cell& cell) {
    Table& table = store.table(store.index_.table_of(cell.meta));
    if (store.expired(cell.meta, table)) return;
    TableShape& shape = shape_of(table);
    ++(is_candidate(cell.meta) ? shape.waiting : shape.rows);
    cells_.push_back(cell);
  }

  bool add_if_expired(StoreImpl& store, const Cell& cell) {
    Table& table = store.table(store.index_.table_of(cell.meta));
    if (!store.expired(cell.meta, table)) return false;
    ++shape_of(table).gone;
    gone_.push_back({cell.hash, table.spec.id, 0});
    return true;
  }

  void add_gone(StoreImpl& store, uint32_t number, uint32_t boundary) {
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
          {table.spec.id, table.dim, table.spec.dtype, table.spec.optim.kind, table.optimizer.state_floats(), 0, 0, 0});
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

  static constexpr size_t kAhead = 8;  // rows asked for before they are copied: they lie anywhere
  static constexpr uint16_t kNowhere = 0xffff;
  std::vector<uint16_t> place_ = std::vector<uint16_t>(size_t{kNoTable} + 1, kNowhere);  // by table
  std::vector<TableShape> shapes_;
  std::vector<Cell> cells_;
  std::vector<Tombstone> gone_;
};

}  // namespace springtide
