// Backend: the interface between a training step and its tables, in this process (local_backend.h) or on servers
// (remote_backend.h). In: unique keys routed to servers (step_rows.h). Out: rows, or completion of a push.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "base/types.h"

namespace springtide {

// Maps slots to servers.
struct Placement {
  uint32_t epoch = 0;
  std::vector<uint16_t> server_of_slot;  // its size is the number of slots of the job, a power of two of at least 64
  uint16_t servers = 1;
  uint64_t version = 0;  // version of this map in this process; every change increases it, also within an epoch
};

// Unique (table, key) pairs ordered by (server, slot). Row i begins at float row_offset[i]. Rows of one server are
// contiguous and in the order of the request, so a reply needs no further copy.
struct Routed {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<uint32_t> row_offset;    // size keys.size() + 1
  std::vector<uint32_t> server_begin;  // of size servers + 1, with indices into keys
  uint64_t version = 0;                // version of the placement with which this part was planned

  // Calls visit(row) for every row, and server_ends() after the rows of each server.
  template <class Visit, class ServerEnds>
  void for_each(Visit visit, ServerEnds server_ends) const {
    for (size_t s = 0; s + 1 < server_begin.size(); ++s) {
      for (uint32_t row = server_begin[s]; row < server_begin[s + 1]; ++row) visit(row);
      server_ends();
    }
  }
};

// Keys and rows of a request. One frame to a server has several of these parts, such as embedding rows and dense
// chunks.
struct Part {
  const Routed* routed;
  float* rows;  // pull: where the rows go; push: gradients, which are only read
  // bsp: a part of a push may contain images of rows (types.h) instead of gradients, but never both.
  bool holds_images() const { return !routed->tables.empty() && is_image(routed->tables[0]); }
};

// Keys of a part that go to one server: [begin, end) in the plan of the part.
struct Slice {
  const Part* part;
  uint32_t begin, end;
  std::span<const Key> keys() const { return {part->routed->keys.data() + begin, end - begin}; }
  std::span<const TableId> tables() const { return {part->routed->tables.data() + begin, end - begin}; }
  float* rows() const { return part->rows + part->routed->row_offset[begin]; }
  uint64_t floats() const { return part->routed->row_offset[end] - part->routed->row_offset[begin]; }
  uint64_t bytes() const { return sizeof(float) * floats(); }
};

inline std::vector<Slice> slices_of(std::span<const Part> parts, size_t server) {
  std::vector<Slice> slices;
  for (const Part& part : parts) {
    const auto& begin = part.routed->server_begin;
    if (begin.size() <= server + 1) continue;  // true if the part was planned before that server joined
    if (begin[server] != begin[server + 1]) slices.push_back({&part, begin[server], begin[server + 1]});
  }
  return slices;
}

struct PullMeta {
  uint64_t after_step = 0;  // bsp: answer only after this step is applied; 0: immediately
};

struct PushMeta {
  uint64_t step = 0;  // bsp: the group's step, counted from 1; async: the worker's own step
  bool bsp = false;   // sum with the parts of other ranks in rank order, and then apply once
  // true if no key occurs twice in all parts; otherwise the store sums duplicates first
  bool unique = true;
  uint64_t clock = 0;               // age clock: steps or event time
  std::vector<BatchRange> batches;  // identities of the batches that are trained by this push
  std::vector<TableHyper> hyper;
  // for each server, how many pushes it had applied when it read the oldest rows; kNotSeen: none
  std::vector<uint64_t> seen = {};
};
constexpr uint64_t kNotSeen = ~uint64_t{0};

// A request in flight. wait() blocks without the GIL, and throws the request's error.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
  virtual bool done() = 0;
  // After a pull, lowers `by_server` to the number of pushes that each server had applied when it read the rows.
  virtual void lower_seen(std::span<uint64_t> by_server) const { static_cast<void>(by_server); }
};

class Backend : public NoCopy {
 public:
  virtual ~Backend() = default;
  virtual std::shared_ptr<const Placement> placement() const = 0;  // current placement
  // Declares tables on every server; throws BadInput on a mismatch. Returns the highest age clock of the servers.
  virtual uint64_t declare(std::span<const TableSpec> tables) = 0;
  // Parts, routed plans and buffers must exist until the Pending is done. Requests of one backend to one server are
  // served in order, so a pull after a push sees the pushed updates.
  virtual std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) = 0;
  virtual std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) = 0;
  // Sets weights and resets optimizer state. With `keep`, rows that exist stay unchanged, because late initial values
  // must not overwrite trained rows. An empty push with the identity first_values_of(table) records that all initial
  // values have been assigned.
  virtual void assign(std::span<const Part> parts, bool keep) = 0;
  // Returns all rows of a table, server by server: keys and float32 weights.
  virtual void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) = 0;
  // Returns memory from which this backend transfers with the fewest copies, aligned to a cache line.
  virtual std::shared_ptr<float> buffer(size_t floats) {
    void* memory = ::operator new(floats * sizeof(float), std::align_val_t{64});
    return {static_cast<float*>(memory), [](float* p) { ::operator delete(p, std::align_val_t{64}); }};
  }
};

}  // namespace springtide
