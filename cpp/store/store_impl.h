// The parts of a Store and what its files share: store.cpp (tables, wiring), store_pull.cpp, store_push.cpp,
// store_once.cpp (pushes by identity), store_evict.cpp, store_slots.cpp (scan, loads),
// store_export.cpp, store_copy.cpp, store_import.cpp.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "slots/slot_identities.h"
#include "slots/slot_image.h"
#include "store/index/slot_index.h"
#include "store/keys/age_clock.h"
#include "store/keys/call_plan.h"
#include "store/keys/row_counts.h"
#include "store/keys/table.h"
#include "store/store.h"

namespace springtide {

// An eviction that an export since a cut must tell of.
struct Tombstone {
  uint64_t hash;
  TableId table;
  uint32_t tick;
};

// What a slot remembers beside its cells.
struct SlotHistory {
  std::vector<Tombstone> gone;  // oldest first; kept only once a cut was made
  uint32_t complete_from = 0;   // exports since a boundary before this tick must be full
  size_t expected = 0;          // more that go, for which there must be room
};

class SlotCopy;
struct StreamedItems;

struct alignas(64) Stripe {
  std::mutex lock;
  uint64_t sweep_credit = 0;
  uint32_t sweep_slot = 0, sweep_entry = 0;
  uint32_t closed = 0;  // of its slots
  SlotIdentities identities;
};

class StoreImpl {
 public:
  explicit StoreImpl(const StoreOptions& options);
  ~StoreImpl();

  void declare(const TableSpec& spec);
  Table* find_table(TableId id) const { return !is_plain(id) ? nullptr : tables_[id].load(std::memory_order_acquire); }
  Table& table(TableId id) const;
  // What is asked for or given under this id; BadInput for bits that mean nothing.
  TableUse use_of(TableId id) const { return {table(is_image(id) || is_count(id) ? table_of(id) : id), id}; }
  uint32_t floats_of(TableId id) const {
    if (is_count(id)) return static_cast<void>(table(table_of(id))), 1;
    return is_image(id) ? table(table_of(id)).image_floats() : table(id).dim;
  }
  void check_slot(uint32_t slot) const;
  void check_process() const;  // a forked child has no tables

  void pull(std::span<const TableId> tables, std::span<const Key> keys, float* out, std::vector<uint16_t>* refused,
            bool helped = true, const std::function<void(size_t)>& ready = {});
  PushStats push(std::span<const TableId> tables, std::span<const Key> keys, const float* grads,
                 std::span<const TableId> hyper_tables, std::span<const Hyper> hyper, uint64_t clock, bool unique,
                 bool check_finite, std::vector<uint16_t>* refused);
  OnceStats push_once(const PushRows& rows, std::span<const TableId> hyper_tables, std::span<const Hyper> hyper,
                      uint64_t clock, bool unique, const PushIdentity& identity);
  IdentityStats identity_stats();
  IdentitySet applied(uint32_t slot);
  void assign(std::span<const TableId> tables, std::span<const Key> keys, const float* rows,
              std::vector<uint16_t>* refused, bool keep);
  uint64_t evict(uint64_t clock);

  bool scan(TableId table, uint32_t slot, std::vector<Key>& keys, std::vector<float>& rows);
  void set_closed(uint32_t slot, bool closed);
  bool is_open(uint32_t slot);
  std::vector<TableSpec> specs();
  // An image that lacks its sum. Returns 0, or with nothing written the size of one larger than `most_bytes`.
  uint64_t write_image(uint32_t slot, uint64_t since_cut, ImageWriter& to, bool close = false,
                       uint64_t most_bytes = UINT64_MAX);
  bool copy_slot(uint32_t slot, uint64_t since_cut, SlotCopy& to, size_t part_bytes);
  void refer(uint32_t slot, SlotReference& to);
  enum class Into : uint8_t { any, closed, closed_then_open };
  void import_image(const SlotImage& image, Into into);
  void clear_slot(uint32_t slot);
  uint64_t dirty_rows(uint32_t slot, uint64_t since_cut);
  SlotLoad load(uint32_t slot);
  uint64_t resident() const { return extents_.resident() + index_.resident(); }

  const StoreOptions options;
  AgeClock clock;
  RowCounts counts{options.slots};

 private:
  friend class Reservation;
  friend class SlotExport;

  uint32_t slot_number(uint64_t hash) const { return static_cast<uint32_t>(hash >> slot_shift_); }
  uint32_t stripe_of_number(uint32_t slot) const { return slot >> (58 - slot_shift_); }
  Stripe& stripe_of_slot(uint32_t slot) { return stripes_[stripe_of_number(slot)]; }
  static uint32_t stripe_number(uint64_t hash) { return static_cast<uint32_t>(hash >> 58); }
  bool expired(uint64_t meta, const Table& table) const {
    return table.spec.ttl != 0 && clock.expired(stamp_of(meta), table.spec.ttl);
  }
  bool is_row(const Cell* cell, const TableUse& use) const {
    return cell != nullptr && !is_candidate(cell->meta) && (!use.ages || !expired(cell->meta, *use.table));
  }
  // More shares than threads: one whose core is taken from it for a while holds nobody up for long.
  static constexpr uint32_t kSharesAThread = 4;
  // Under some thousand keys a second thread costs more than it brings.
  bool worth_sharing(size_t keys) const { return keys >= 4096 && pool_.threads() > 1; }
  void for_stripes(size_t keys, const std::function<void(uint32_t)>& work);

  CallPlan& plan_push(std::span<const TableId> tables, std::span<const Key> keys, std::span<const TableId> hyper_tables,
                      std::span<const Hyper> hyper);
  void begin_push(uint64_t at);
  PushStats push_in_order(const CallPlan& plan, std::span<const TableId> tables, std::span<const Key> keys,
                          const float* grads, std::vector<uint16_t>* refused);
  void push_uniform(StreamedItems& source, PushStats& stats, std::vector<uint16_t>& refused);
  template <class Source>
  void push_stripe(uint32_t number, Source& source, PushStats& stats, std::vector<uint16_t>& refused);
  // `piece(p)`: the items of this stripe in the p-th of the push's pieces.
  using Pieces = std::function<std::span<const Item>(size_t)>;
  void push_stripe_once(uint32_t number, size_t pieces, const Pieces& piece, std::span<const SampleSpan> spans,
                        std::span<const uint8_t> covers, OnceStats& stats);
  struct OnceWork;
  std::span<const uint8_t> covered_and_open(uint32_t number, std::span<const uint8_t> covers, OnceWork& work,
                                            OnceStats& stats);
  void note_refused(uint32_t number, const OnceWork& work, OnceStats& stats);
  void sort_out(uint32_t number, std::span<const Item> items, OnceWork& work, OnceStats& stats);
  void find_rows(std::span<const Item> items, OnceWork& work);
  void apply(OnceWork& work, PushStats& stats) noexcept;
  uint32_t slots_a_stripe() const { return options.slots / kStripes; }
  void copy_part(SlotCopy& to);
  bool copy_end(SlotCopy& to);

  // Each is under the stripe's lock.
  void mark_closed(uint32_t slot, bool closed);
  // What of the source lies in open slots; the others' slots are noted.
  template <class Source>
  std::span<const Item> open_items(Source& source, std::vector<uint16_t>& refused);
  template <class Source>
  void push_rows(uint32_t number, Source& source, PushStats& stats);
  void push_items(uint32_t number, std::span<const Item> items, PushStats& stats);
  const IdentitySet& identities_of(uint32_t slot) {
    return stripe_of_slot(slot).identities.of(slot % slots_a_stripe());
  }
  void remember(uint32_t slot, IdentitySet set) {
    stripe_of_slot(slot).identities.put(slot % slots_a_stripe(), std::move(set));
  }
  template <class Source>
  void pull_rows(Source& source);
  void pull_uniform(StreamedItems& source);
  template <uint32_t kDim>
  void pull_uniform_of(StreamedItems& source);
  void apply_rest(std::span<const Item> rest, uint32_t tick, PushStats& stats);  // keys without a row
  // Of a key that is in a Reservation.
  void apply_one(const Item& item, uint32_t tick, PushStats& stats) noexcept;
  RowHandle create(const Item& item, Cell* cell, uint32_t tick);  // with its init
  // Its memory holds anything. The cell of a key that waited, if there is one, becomes the row's.
  RowHandle make_row(Table& table, uint64_t hash, Cell* cell, uint32_t tick);
  void update(const Item& item, RowHandle row);
  void assign_one(const Item& item, uint32_t tick, bool keep);

  // Leaves room in a table with a capacity. Whether cells have moved.
  bool evict_for_one(Table& table, uint32_t slot_number, PushStats& stats);
  void evict_oldest(Table& table, uint32_t slot_number);
  // A row, or a key that waits, leaves. With nothing changed if there is no memory for it.
  void drop(uint32_t slot_number, Cell* cell, Table& table, bool remember);
  void reserve_drop(uint32_t slot_number,
                    Table& table);  // then the next cannot fail; settle() comes after it
  void drop_reserved(uint32_t slot_number, Cell* cell, Table& table, bool remember);
  void settle(uint32_t slot_number, Table& table) noexcept;
  void reserve_erase(uint32_t slot_number);  // then the next cannot fail
  void erase_rows(uint32_t slot_number) noexcept;
  void abandon(uint32_t slot_number) noexcept;
  void import_table(uint32_t slot_number, const TableImage& part);
  void import_rows(uint32_t slot_number, const TableImage& part, Table& into);
  void record_tombstone(uint32_t slot_number, uint64_t hash, TableId table);
  uint64_t drop_expired(uint32_t slot_number, const std::vector<Cell>& found);
  void sweep(Stripe& stripe, uint32_t number, size_t items, PushStats& stats);
  void renumber_ticks();

  uint32_t slot_shift_;
  ExtentArena extents_;
  SlotIndex index_;
  std::array<Stripe, kStripes> stripes_;
  std::vector<SlotHistory> histories_;
  std::vector<uint8_t> closed_;  // by slot, each under its stripe's lock
  std::unique_ptr<std::atomic<Table*>[]> tables_;
  std::mutex declare_lock_;
  std::vector<std::unique_ptr<Table>> owned_;
  std::atomic<bool> any_ttl_{false};
  ThreadPool pool_;
  uint64_t process_;
};

}  // namespace springtide
