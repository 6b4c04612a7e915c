// The keys of one call, hashed and grouped by lock stripe in the order in which they came, so that each stripe is
// locked only once. In: tables, keys, and where the floats of each row are. Out: items per stripe for store_pull.cpp
// and store_push.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "store/keys/table.h"

namespace springtide {

// A table in one call. Members that every key needs come first, in one cache line.
struct alignas(64) TableUse {
  TableUse(Table& used, Kernel by, const StepArgs& with)
      : id(used.spec.id),
        dtype(used.spec.dtype),
        ages(used.spec.ttl != 0),
        plain(used.spec.dtype == DType::f32),
        dim(used.dim),
        weight_bytes(used.weight_bytes),
        vector_bytes(used.vector_bytes),
        number_bytes(used.number_bytes),
        base(used.rows.base()),
        vectors_at(used.rows.vectors_at()),
        numbers_at(used.rows.numbers_at()),
        table(&used),
        kernel(by),
        args(with) {}
  // `asked` is the table's id, possibly with the flag kImage or kCount.
  TableUse(Table& used, TableId asked) : TableUse(used, nullptr, {}) {
    if (is_plain(asked)) return;
    plain = false;
    image = is_image(asked);
    count = is_count(asked);
    dim = image ? used.image_floats() : 1;
  }

  uint8_t* weights(RowHandle row) const {
    return base + extent_of(row) * kExtentBytes + size_t{row_of(row)} * weight_bytes;
  }
  float* vectors(RowHandle row) const {
    return reinterpret_cast<float*>(base + extent_of(row) * kExtentBytes + vectors_at +
                                    size_t{row_of(row)} * vector_bytes);
  }
  float* number(RowHandle row) const {
    return reinterpret_cast<float*>(base + extent_of(row) * kExtentBytes + numbers_at) + row_of(row);
  }
  void step(uint8_t* weights, float* vectors, float* number, const float* grad) const {
    update_row(dtype, kernel, args, weights, vectors, number, grad, dim);
  }

  TableId id;
  DType dtype;
  bool ages;
  bool plain;          // true if the call needs only weights, and these are float32
  bool image = false;  // true if the call needs rows with their optimizer state
  bool count = false;  // true if the call needs update counts
  uint32_t dim, weight_bytes, vector_bytes, number_bytes;
  uint8_t* base;
  size_t vectors_at, numbers_at;
  Table* table;
  Kernel kernel;
  StepArgs args;
};

struct Item {
  uint64_t hash;
  const TableUse* use;
  float* data;  // pull: where the row goes; push and assign: only read
};

// The rows of the next `keys` keys of a call are contiguous, from `floats` on. A push only reads these floats.
struct RowRun {
  size_t keys = 0;
  float* floats = nullptr;
};

// Keys hashed and grouped by lock stripe. Within a stripe, keys keep their order. A push of several runs (tables, dense
// chunks) has one GroupedKeys for each run, because a single run is usually already in slot order.
class GroupedKeys {
 public:
  void fill(std::span<const TableId> tables, std::span<const Key> keys, std::span<const RowRun> runs,
            const TableUse* const* use_by_id);
  std::span<const Item> stripe(uint32_t number) const {
    return {items_.data() + begin_[number], items_.data() + end_[number]};
  }
  std::span<Item> stripe(uint32_t number) { return {items_.data() + begin_[number], items_.data() + end_[number]}; }
  void shorten(uint32_t number, uint32_t kept) { end_[number] = begin_[number] + kept; }
  std::span<const Item> items() const { return {items_.data(), count_}; }

 private:
  std::vector<Item> items_, unordered_;  // never shrink
  size_t count_ = 0;
  std::array<uint32_t, kStripes> begin_{}, end_{};
};

// A range of keys that one thread processes.
struct KeyRange {
  size_t first, end;
  size_t floats_before;
};

class CallPlan {
 public:
  static CallPlan& of_this_thread();  // the memory is used again in the next call

  void begin();
  void use(TableId id, const TableUse& use);
  // Looks up every table before anything is changed. For tables that use() did not name, calls `missing_use`, which may
  // throw.
  void name_tables(std::span<const TableId> tables, std::span<const Key> keys,
                   const std::function<TableUse(TableId)>& missing_use);
  // True if all rows are float32, have the same length and do not expire.
  bool alike() const { return uniform_; }
  const TableUse* const* use_by_id() const { return use_by_id_.data(); }
  // Returns true if the keys in a sample are in slot order. Keys of one stripe are then adjacent without grouping.
  bool seems_ordered(std::span<const TableId> tables, std::span<const Key> keys) const;
  std::vector<KeyRange> cut(std::span<const TableId> tables, std::span<const Key> keys, uint32_t parts) const;
  // Divides keys as above, but for keys in slot order with alike() rows. No range ends in the middle of a stripe.
  std::vector<KeyRange> cut_at_stripes(std::span<const TableId> tables, std::span<const Key> keys,
                                       uint32_t parts) const;
  void group(std::span<const TableId> tables, std::span<const Key> keys, float* data) {
    const RowRun all{keys.size(), data};
    group(tables, keys, {&all, 1});
  }
  void group(std::span<const TableId> tables, std::span<const Key> keys, std::span<const RowRun> runs) {
    grouped_.fill(tables, keys, runs, use_by_id_.data());
  }
  // Sums the gradients of equal (table, key) pairs in their order, and keeps one item for each pair.
  void sum_duplicates();

  std::span<const Item> stripe(uint32_t number) const { return grouped_.stripe(number); }
  std::span<const Item> items() const { return grouped_.items(); }

 private:
  void sum_stripe(uint32_t number);

  GroupedKeys grouped_;
  bool uniform_ = false;
  uint32_t common_dim_ = 0;  // dim of all keys; 0 if row lengths differ
  std::deque<TableUse> uses_;
  std::vector<const TableUse*> use_by_id_;
  std::vector<TableId> used_ids_;
  std::vector<uint32_t> dims_ = std::vector<uint32_t>(size_t{1} << 16);  // by id; 0: not used
  std::vector<float> sums_;
  std::vector<uint32_t> places_;
};

}  // namespace springtide
