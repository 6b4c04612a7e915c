// Reserves the memory that new keys need (index cells, rows, evictions) before anything changes, so that a
// push is recorded and applied by code that cannot fail. Used under the stripe's lock by store_once.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "store/keys/call_plan.h"

namespace springtide {

class Store;

class Reservation {
 public:
  enum class Admission : uint8_t { counted, at_once };

  // BadInput or bad_alloc: nothing has changed.
  Reservation(Store& store, std::span<const Item> keys, Admission admission);
  // Gives back what was not used. Keys that were not applied leave no trace.
  ~Reservation() { settle(); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  void use() { used_ = true; }  // all keys are applied now

 private:
  void expect(const Item& item, Admission admission);
  void expect_row(uint32_t slot, Table& table, bool has_one);
  void expect_evictions(uint32_t slot, Table& table, uint64_t count);
  void settle() noexcept;
  void take_out(const Item& item) noexcept;

  Store& store_;
  std::span<const Item> keys_;
  bool used_ = false;
};

}  // namespace springtide
