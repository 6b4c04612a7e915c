// Matches the keys of a request with the memory of their rows. Checks sizes first. In: a parsed body (wire.h), dims of
// the tables. Out: runs of keys with their floats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "net/window.h"
#include "server/requests/server_state.h"
#include "wire/wire.h"

namespace springtide {

// The rows of the keys [first, first + keys) are contiguous, from `floats` on.
struct Run {
  size_t first = 0;
  size_t keys = 0;
  float* floats = nullptr;
};

// Number of floats of a row, or of its image, by table id; cached per connection.
class Dims {
 public:
  explicit Dims(const Store& store) : store_(store) {}
  uint32_t of(TableId table) {  // throws BadInput for a table that was never declared
    if (table < known_.size() && known_[table] != 0) return known_[table];
    return learn(table);
  }
  uint64_t floats(std::span<const TableId> tables);  // total number of floats, with one row per entry
  // Returns the same. `common` is set to the dim of all tables, or 0 if row lengths differ.
  uint64_t floats(std::span<const TableId> tables, uint32_t& common);

 private:
  uint32_t learn(TableId table);
  const Store& store_;
  std::vector<uint32_t> known_;
};

// Throws BadInput unless the number of floats matches the keys. The floats follow the keys in the body, or lie in the
// window at the spans.
std::vector<Run> runs_of(const FrameHeader& header, const BodyView& body, const Window& window, Dims& dims);
// Returns where the reply to a pull goes in the window; empty if the reply goes over the socket.
std::vector<Run> reply_runs(const FrameHeader& header, const BodyView& body, const Window& window, Dims& dims);

// Returns the slots that a push with batch identities covers, as a mask for Store::push_once; empty means all slots. A
// push covers the slots that it names, or all slots that this server has owned since the push's epoch. If this server
// got a slot after that epoch, the client sent the slot's keys to a different server.
std::vector<uint8_t> covered_slots(const FrameHeader& header, const BodyView& body, const SlotOwnership& owned);

// Returns the slots of keys that this server does not own, in ascending order. `keep[i]` is set to true for keys that
// it owns.
std::vector<uint16_t> foreign_slots(const BodyView& body, const SlotOwnership& owned, uint32_t slots,
                                    std::vector<uint8_t>& keep);
// Copies keys and floats of the runs into one part: the entries with keep[i], or all entries if `keep` is empty.
StepPart gathered(const BodyView& body, std::span<const Run> runs, std::span<const uint8_t> keep, Dims& dims);
// Throws NonFinite, with the first key that has a non-finite gradient. Images are not checked, because training may
// produce any value.
void check_finite(const BodyView& body, std::span<const Run> runs, Dims& dims, const Store& store);

}  // namespace springtide
