// The tables of one server, or of a job in one process. All tables' slots are in shared arenas of huge pages. In:
// (table, key) pairs and gradients. Out: rows. Files of the store: store.cpp (tables), store_pull.cpp, store_push.cpp,
// store_once.cpp (pushes by identity), store_reserve.cpp, store_evict.cpp, store_slots.cpp (scan, loads, import),
// store_export.cpp. Tests compare the store with tests/oracles/reference.py.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"
#include "slots/identity_set.h"
#include "slots/slot_image.h"
#include "store/index/slot_index.h"
#include "store/keys/age_clock.h"
#include "store/keys/call_plan.h"
#include "store/keys/row_counts.h"
#include "store/keys/table.h"

namespace springtide {

class SlotCopy;
struct SlotReference;
struct StreamedItems;

struct StoreOptions {
  uint32_t slots = 1024;  // of the job, a power of two, 64 to 65536
  uint64_t seed = 0;
  uint64_t reserve_bytes = 0;  // address space for rows in bytes; 0: twice the machine's memory
  uint32_t threads = 1;        // number of threads for one large call
};

struct SlotLoad {
  uint64_t rows = 0;      // existing rows
  uint64_t bytes = 0;     // weights and state of these rows, and their index cells
  uint64_t requests = 0;  // number of keys pulled or pushed since the store began
};

struct PushStats {
  uint64_t applied = 0;  // rows updated
  uint64_t created = 0;
  uint64_t waiting = 0;  // number of keys that were seen but not admitted yet
  uint64_t evicted = 0;

  PushStats& operator+=(const PushStats& other) {
    applied += other.applied;
    created += other.created;
    waiting += other.waiting;
    evicted += other.evicted;
    return *this;
  }
};

// The keys of a push with their gradients.
struct PushRows {
  std::span<const TableId> tables;
  std::span<const Key> keys;
  std::span<const RowRun> runs;  // together the shares cover all keys
};

// The batches that a push trains, and the slots that it covers. The covered slots include slots of which the push has
// no keys.
struct PushIdentity {
  std::span<const BatchRange> batches;
  std::span<const uint8_t> covers;  // mask by slot; empty means all slots
};

struct OnceStats : PushStats {
  uint64_t had_keys = 0;      // keys that were skipped, because their slots have already applied these batches
  uint64_t foreign_keys = 0;  // keys that were not applied, because their slots are not covered or are closed
  // slots of foreign keys, and closed slots that are covered but have no keys; in ascending order
  std::vector<uint16_t> foreign;
  std::vector<uint16_t> torn;  // slots that had applied only a part of the batches, where nothing was applied now
};

struct IdentityStats {
  uint64_t sets = 0;  // number of sets; one per stripe if all its slots have the same history
  uint64_t runs = 0;  // ranges of samples in all sets
  uint64_t bytes = 0;
};

// An evicted row, which an export since a cut must contain.
struct Tombstone {
  uint64_t hash;
  TableId table;
  uint32_t tick;
};

// Data that a slot stores in addition to its cells.
struct SlotHistory {
  std::vector<Tombstone> gone;  // oldest first; only recorded after the first cut
  uint32_t complete_from = 0;   // an export since an earlier boundary than this must be full
  size_t expected = 0;          // number of further evictions for which `gone` must have room
};

struct alignas(64) Stripe {
  std::mutex lock;
  uint64_t sweep_credit = 0;
  uint32_t sweep_slot = 0, sweep_entry = 0;
  uint32_t closed = 0;  // number of closed slots
  SlotIdentities identities;
};

class Store : public NoCopy {
 public:
  explicit Store(const StoreOptions& options);

  // Idempotent. Throws BadInput with the field that differs from an earlier spec.
  void declare(const TableSpec& spec);
  // throws BadInput for a table that was never declared
  const TableSpec& spec(TableId id) const { return table(id).spec; }
  uint32_t slots() const { return options.slots; }
  uint64_t row_floats(std::span<const TableId> tables) const;  // number of floats in one row of each of these tables
  // number of floats in the image of a row (types.h)
  uint32_t image_floats(TableId id) const { return table(id).image_floats(); }

  // Writes the row of each keys[i] in tables[i] to `out`, one after the other, as float32. For a missing row, writes
  // its initial value (with kImage, its initial image). The call is fastest if keys are in slot order, because each
  // stripe is then locked only once. `refused` gets the closed slots. Their rows in `out` are undefined. `ready(n)`
  // runs in the caller's thread when the first n rows are complete and their closed slots are in `refused`. Its last
  // call has all rows. `helped`: true to use the store's threads.
  void pull(std::span<const TableId> tables, std::span<const Key> keys, float* out,
            std::vector<uint16_t>* refused = nullptr, bool helped = true,
            const std::function<void(size_t)>& ready = {});

  // Applies gradients, which have the layout of pull's output. `hyper` must name every table of the push. `unique`
  // promises that no (table, key) occurs twice. Otherwise, duplicates are summed first, in order. Gradients must be
  // finite. Keys of closed slots are skipped, and their slots are added to `refused`.
  PushStats push(std::span<const TableId> tables, std::span<const Key> keys, const float* grads,
                 std::span<const TableHyper> hyper, uint64_t clock, bool unique,
                 std::vector<uint16_t>* refused = nullptr);

  // Exactly-once push: each covered slot applies the push and records its batches in one critical section. If the slot
  // has already applied these batches, it does nothing. Gradients must be finite. Throws BadInput and applies nothing
  // if the batches overlap.
  OnceStats push_once(const PushRows& rows, std::span<const TableHyper> hyper, uint64_t clock, bool unique,
                      const PushIdentity& identity);
  IdentitySet applied(uint32_t slot) const;
  IdentityStats identity_stats() const;

  // Sets weights and resets optimizer state. With kImage, sets the whole image. Creates missing rows without admission.
  // Skips closed slots as push does. With `keep`, changes neither existing rows nor slots that already have the table's
  // first values (first_values_of).
  void assign(std::span<const TableId> tables, std::span<const Key> keys, const float* rows,
              std::vector<uint16_t>* refused = nullptr, bool keep = false);

  // Frees the memory of rows that are older, at time `clock`, than the ttl of their table. Each push also evicts a
  // small part of the rows that are too old. For pull, scan and export, a row is gone as soon as its ttl has passed,
  // even if it is not freed yet.
  uint64_t evict(uint64_t clock);

  // Reads the rows of a table in a slot, as float32, in a repeatable order. If the slot is closed, returns false and
  // adds nothing.
  bool scan(TableId table, uint32_t slot, std::vector<Key>& keys, std::vector<float>& rows);

  // Returns the image of one slot, bit for bit. With since_cut != 0, it has only changes after that cut, and tombstones
  // of removed rows.
  std::vector<uint8_t> export_slot(uint32_t slot, uint64_t since_cut = 0);
  void export_slot(uint32_t slot, uint64_t since_cut, ImageWriter& to);  // into reused memory
  // Copies an image in parts, so that the slot's lock is held only briefly. Each call copies about `part_bytes` bytes.
  // The call that returns true completes the image as it is at that moment. A smaller slot is copied in one call.
  bool copy_slot(uint32_t slot, uint64_t since_cut, SlotCopy& to, size_t part_bytes);
  // A full image replaces the slot's rows, and an image since a cut is applied on top of them. For a malformed image,
  // throws BadInput and changes nothing. If memory runs out, the slot is empty and closed after the call.
  void import_slot(std::span<const uint8_t> image) { import_image(decode(image), Into::any); }
  void clear_slot(uint32_t slot);

  // A closed slot belongs to another store, or will soon. Pushes and assignments skip a closed slot, and pulls report
  // it. At first, all slots are open. Closing and opening are atomic with respect to pulls and pushes.
  void close_slot(uint32_t slot) { set_closed(slot, true); }
  void open_slot(uint32_t slot) { set_closed(slot, false); }
  bool is_open(uint32_t slot) const;
  // Closes the slot and copies its changes since the cut, in one critical section.
  void close_and_export(uint32_t slot, uint64_t since_cut, ImageWriter& to);
  // Returns the addresses of a closed slot's rows. The addresses are valid until the slot is opened, cleared or
  // imported. Throws BadInput if the slot is open.
  void refer(uint32_t slot, SlotReference& to);
  // Imports an image into a closed slot. With `open`, also opens the slot. Throws BadInput if the slot is open, or if
  // the image belongs to a different slot.
  void import_closed(uint32_t slot, std::span<const uint8_t> image, bool open);
  std::vector<TableSpec> tables() const;  // by id

  // Starts a new cut. Rows that change later are dirty with respect to it.
  uint64_t cut();
  uint64_t dirty_rows(uint32_t slot, uint64_t since_cut);  // number of rows in export_slot(slot, since_cut)

  SlotLoad load(uint32_t slot);
  uint64_t rows() const;
  uint64_t rows(TableId id) const { return static_cast<uint64_t>(table(id).count.load()); }
  AgeClock clock;  // public for tests, which call set_last_tick()
  uint64_t resident_bytes() const { return extents_.resident() + index_.resident(); }  // of the arenas

 private:
  friend class Reservation;
  friend class SlotExport;

  Table* find_table(TableId id) const { return !is_plain(id) ? nullptr : tables_[id].load(std::memory_order_acquire); }
  Table& table(TableId id) const;
  // Returns how a request with this id uses its table. Throws BadInput for invalid flag bits.
  TableUse use_of(TableId id) const { return {table(is_image(id) || is_count(id) ? table_of(id) : id), id}; }
  void check_slot(uint32_t slot) const;
  void check_process() const;  // a forked child has no tables
  uint32_t slot_number(uint64_t hash) const { return static_cast<uint32_t>(hash >> slot_shift_); }
  uint32_t stripe_of_number(uint32_t slot) const { return slot >> (58 - slot_shift_); }
  Stripe& stripe_of_slot(uint32_t slot) const { return stripes_[stripe_of_number(slot)]; }
  static uint32_t stripe_number(uint64_t hash) { return static_cast<uint32_t>(hash >> 58); }
  bool expired(uint64_t meta, const Table& table) const {
    return table.spec.ttl != 0 && clock.expired(stamp_of(meta), table.spec.ttl);
  }
  bool is_row(const Cell* cell, const TableUse& use) const {
    return cell != nullptr && !is_candidate(cell->meta) && (!use.ages || !expired(cell->meta, *use.table));
  }
  // There are more shares than threads, so that a thread that loses its core for a while delays the remaining threads
  // only a little.
  static constexpr uint32_t kSharesAThread = 4;
  // With fewer than some thousand keys, a second thread would cost more time than it saves.
  bool worth_sharing(size_t keys) const { return keys >= 4096 && pool_.threads() > 1; }
  void for_stripes(size_t keys, const std::function<void(uint32_t)>& work);

  CallPlan& plan_push(std::span<const TableId> tables, std::span<const Key> keys, std::span<const TableHyper> hyper);
  void begin_push(uint64_t at);
  PushStats push_in_order(const CallPlan& plan, std::span<const TableId> tables, std::span<const Key> keys,
                          const float* grads, std::vector<uint16_t>* refused);
  void push_uniform(StreamedItems& source, PushStats& stats, std::vector<uint16_t>& refused);
  template <class Source>
  void push_stripe(uint32_t number, Source& source, PushStats& stats, std::vector<uint16_t>& refused);
  // `piece(p)` returns the items of this stripe in the p-th piece of the push.
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
  void set_closed(uint32_t slot, bool closed);
  // Writes an image without its checksum, and returns 0. If the image would be larger than `most_bytes`, writes nothing
  // and returns its size.
  uint64_t write_image(uint32_t slot, uint64_t since_cut, ImageWriter& to, bool close = false,
                       uint64_t most_bytes = UINT64_MAX);
  enum class Into : uint8_t { any, closed, closed_then_open };
  void import_image(const SlotImage& image, Into into);
  void copy_part(SlotCopy& to);
  bool copy_end(SlotCopy& to);

  // The caller holds the stripe's lock during these functions.
  void mark_closed(uint32_t slot, bool closed);
  // Returns the items in open slots, and adds the closed slots to `refused`.
  template <class Source>
  std::span<const Item> open_items(Source& source, std::vector<uint16_t>& refused);
  template <class Source>
  void push_rows(uint32_t number, Source& source, PushStats& stats);
  void push_items(uint32_t number, std::span<const Item> items, PushStats& stats);
  const IdentitySet& identities_of(uint32_t slot) const {
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
  // Applies the gradient of a key for which memory is reserved (Reservation).
  void apply_one(const Item& item, uint32_t tick, PushStats& stats) noexcept;
  // Creates a row with undefined content. If the key has a candidate cell, that cell becomes the row's cell.
  RowHandle make_row(Table& table, uint64_t hash, Cell* cell, uint32_t tick);
  void update(const Item& item, RowHandle row);
  void assign_one(const Item& item, uint32_t tick, bool keep);

  // Makes room for one more row in a table with a capacity. Returns whether cells have moved.
  bool evict_for_one(Table& table, uint32_t slot_number, PushStats& stats);
  void evict_oldest(Table& table, uint32_t slot_number);
  // Removes a row or a candidate from the slot. If memory for the removal is missing, throws and changes nothing.
  void drop(uint32_t slot_number, Cell* cell, Table& table, bool remember);
  // After this call, drop_reserved() cannot fail. settle() must follow.
  void reserve_drop(uint32_t slot_number, Table& table);
  void drop_reserved(uint32_t slot_number, Cell* cell, Table& table, bool remember);
  void settle(uint32_t slot_number, Table& table) noexcept;
  void reserve_erase(uint32_t slot_number);  // after this call, erase_rows() cannot fail
  void erase_rows(uint32_t slot_number) noexcept;
  void abandon(uint32_t slot_number) noexcept;
  void import_table(uint32_t slot_number, const TableImage& part);
  void import_rows(uint32_t slot_number, const TableImage& part, Table& into);
  void record_tombstone(uint32_t slot_number, uint64_t hash, TableId table);
  uint64_t drop_expired(uint32_t slot_number, const std::vector<Cell>& found);
  void sweep(Stripe& stripe, uint32_t number, size_t items, PushStats& stats);
  void renumber_ticks();

  const StoreOptions options;
  RowCounts counts{options.slots};
  uint32_t slot_shift_;
  ExtentArena extents_;
  SlotIndex index_;
  mutable std::array<Stripe, kStripes> stripes_;
  std::vector<SlotHistory> histories_;
  std::vector<uint8_t> closed_;  // by slot, guarded by the stripe's lock
  std::unique_ptr<std::atomic<Table*>[]> tables_;
  mutable std::mutex declare_lock_;
  std::vector<std::unique_ptr<Table>> owned_;
  std::atomic<bool> any_ttl_{false};
  ThreadPool pool_;
  uint64_t process_;
};

// Reserves the memory that new keys need (index cells, rows, evictions) before anything changes. The code that then
// records and applies the push cannot fail. The buffer is used under the stripe's lock.
class Reservation : public NoCopy {
 public:
  enum class Admission : uint8_t { counted, at_once };

  // If this throws BadInput or bad_alloc, nothing has changed.
  Reservation(Store& store, std::span<const Item> keys, Admission admission);
  // Returns unused memory, and removes the cells of keys that were not applied.
  ~Reservation() { settle(); }

  void use() { used_ = true; }  // all keys have been applied

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

// Returns a sentence that says why a push was not applied to these slots.
std::string describe_torn(const Store& store, std::span<const BatchRange> batches, std::span<const uint16_t> torn);

}  // namespace springtide
