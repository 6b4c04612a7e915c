// The tables of one server, or of a job of one process: slots of every table in shared huge-page arenas.
// In: (table, key) pairs and gradients. Out: rows. Oracle: tests/oracles/reference.py.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "slots/identity_set.h"

namespace springtide {

class ImageWriter;
class SlotCopy;
struct SlotReference;
class StoreImpl;

struct StoreOptions {
  uint32_t slots = 1024;  // of the job, a power of two, 64 to 65536
  uint64_t seed = 0;
  uint64_t reserve_bytes = 0;  // address space for rows; 0: twice the machine's memory
  uint32_t threads = 1;        // used inside one large call
};

struct SlotLoad {
  uint64_t rows = 0;      // existing rows
  uint64_t bytes = 0;     // weights and state of these rows, and their index cells
  uint64_t requests = 0;  // keys asked for or pushed since the store began
};

struct PushStats {
  uint64_t applied = 0;  // rows updated
  uint64_t created = 0;
  uint64_t waiting = 0;  // keys seen but not admitted yet
  uint64_t evicted = 0;
};

// The keys of a push with their gradients: `floats` in runs of keys, one after the other.
struct RowRun {
  size_t keys = 0;
  const float* floats = nullptr;
};
struct PushRows {
  std::span<const TableId> tables;
  std::span<const Key> keys;
  std::span<const RowRun> runs;  // all keys together
};

// The batches that a push trains, and the slots that it covers, with keys or without.
struct PushIdentity {
  std::span<const BatchRange> batches;
  std::span<const uint8_t> covers;  // mask by slot; empty: all slots
};

struct OnceStats : PushStats {
  uint64_t had_keys = 0;          // skipped: their slots have applied these batches
  uint64_t foreign_keys = 0;      // not applied: their slots are not covered, or closed
  std::vector<uint16_t> foreign;  // their slots, and covered closed slots without keys; ascending
  std::vector<uint16_t> torn;     // slots that have applied a part of the batches: nothing was applied
};

struct IdentityStats {
  uint64_t sets = 0;  // one a stripe when all slots have one history
  uint64_t runs = 0;  // ranges of samples in them
  uint64_t bytes = 0;
};

class Store {
 public:
  explicit Store(const StoreOptions& options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Idempotent. BadInput names the field that differs from an earlier spec.
  void declare(const TableSpec& spec);
  const TableSpec& table(TableId id) const;  // BadInput when it was never declared
  bool has_table(TableId id) const;
  uint32_t slots() const;
  uint64_t row_floats(std::span<const TableId> tables) const;  // floats in the rows of these tables, one each
  uint32_t image_floats(TableId id) const;                     // in the image of a row (types.h)

  // Rows of keys[i] in tables[i], one after the other in `out` (float32 whatever the storage). Never writes
  // to a table: a missing row reads as its init. Any order; fastest when keys come in slot order, since a
  // stripe is locked once a run. Of a table with kImage the row's image is read; a missing row's is the one
  // it would be created with.
  // `refused`: slots among them that are closed are added here; what `out` then holds for these means
  // nothing.
  void pull(std::span<const TableId> tables, std::span<const Key> keys, float* out,
            std::vector<uint16_t>* refused = nullptr);

  // Like above, in pieces: calls `ready(n)` in the caller's thread when the rows of the first n keys are complete and
  // their closed slots noted, the last time with all keys. `helped`: use the store's threads.
  void pull(std::span<const TableId> tables, std::span<const Key> keys, float* out, std::vector<uint16_t>& refused,
            bool helped, const std::function<void(size_t)>& ready);

  // Applies gradients laid out like pull's output. hyper[k] belongs to table hyper_tables[k]; every table
  // pushed to must be named. `unique` promises that no (table, key) comes twice; else duplicates are summed
  // first, in order. `check_finite` scans first and throws NonFinite with nothing applied. Keys of closed
  // slots are left out, and their slots added to `refused`.
  PushStats push(std::span<const TableId> tables, std::span<const Key> keys, const float* grads,
                 std::span<const TableId> hyper_tables, std::span<const Hyper> hyper, uint64_t clock, bool unique,
                 bool check_finite, std::vector<uint16_t>* refused = nullptr);

  // Exactly-once push: each covered slot applies it and records its batches in one critical section, unless it has
  // applied them before. Gradients must be finite. BadInput, with nothing applied, when the batches overlap.
  OnceStats push_once(const PushRows& rows, std::span<const TableId> hyper_tables, std::span<const Hyper> hyper,
                      uint64_t clock, bool unique, const PushIdentity& identity);
  IdentitySet applied(uint32_t slot) const;
  IdentityStats identity_stats() const;

  // Sets weights and resets optimizer state; creates rows without admission. Closed slots as with push. Of a
  // table with kImage the whole image is laid down. Rows to `keep` stay what they are: only keys that have
  // none are given one, and none at all in slots that have all first values of the table (first_values_of).
  void assign(std::span<const TableId> tables, std::span<const Key> keys, const float* rows,
              std::vector<uint16_t>* refused = nullptr, bool keep = false);

  // Frees the memory of rows older than their table's ttl at `clock`; push does a bounded share of this
  // itself. To pull, scan and export such a row is gone as soon as the clock has passed it, freed or not.
  uint64_t evict(uint64_t clock);

  // All existing rows of one table in the given slot, weights as float32. Order: unspecified but repeatable.
  // False, and nothing added, when the slot is closed.
  bool scan(TableId table, uint32_t slot, std::vector<Key>& keys, std::vector<float>& rows);

  // Image of one slot, all tables, bit for bit: keys, weights as stored, state, ages, admission counts. With
  // since_cut != 0 only changes after that cut, with tombstones of removed rows.
  std::vector<uint8_t> export_slot(uint32_t slot, uint64_t since_cut = 0);
  void export_slot(uint32_t slot, uint64_t since_cut, ImageWriter& to);  // into reused memory
  // Image in parts, to hold the slot's lock only briefly: each call copies about `part_bytes`, and the call that
  // returns true completes the image as of that moment. A smaller slot is copied at once.
  bool copy_slot(uint32_t slot, uint64_t since_cut, SlotCopy& to, size_t part_bytes);
  // A full image replaces the slot's rows, one since a cut is applied on top. BadInput, with nothing changed, on a
  // malformed image. Out of memory leaves the slot empty and closed.
  void import_slot(std::span<const uint8_t> image);
  void clear_slot(uint32_t slot);

  // A closed slot belongs to another store, or is about to: pushes and assignments skip it, and pulls report it. All
  // slots are open at first. Atomic with respect to pulls and pushes.
  void close_slot(uint32_t slot);
  void open_slot(uint32_t slot);
  bool is_open(uint32_t slot) const;
  // Closes the slot and copies the changes since the cut, atomically.
  void close_and_export(uint32_t slot, uint64_t since_cut, ImageWriter& to);
  // Addresses of a closed slot's rows, for another process on this host. Valid until the slot is opened, cleared or
  // imported. BadInput when it is open.
  void refer(uint32_t slot, SlotReference& to);
  // Imports into a closed slot and, with `open`, opens it. BadInput when the image is of another slot, or the slot is
  // open.
  void import_closed(uint32_t slot, std::span<const uint8_t> image, bool open);
  std::vector<TableSpec> tables() const;  // in the order they were declared

  // Starts a new cut: rows changed later are dirty with respect to it.
  uint64_t cut();
  uint64_t dirty_rows(uint32_t slot, uint64_t since_cut);  // in export_slot(slot, since_cut)

  SlotLoad load(uint32_t slot);
  uint64_t rows() const;
  uint64_t rows(TableId table) const;
  uint64_t resident_bytes() const;  // of the arenas

 private:
  std::unique_ptr<StoreImpl> impl_;
};

// A sentence that says why a push was not applied to these slots.
std::string describe_torn(const Store& store, std::span<const BatchRange> batches, std::span<const uint16_t> torn);

}  // namespace springtide
