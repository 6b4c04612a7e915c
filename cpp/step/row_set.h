// Rows of one request: unique keys routed to servers, their values, their gradients. Base of step_rows.h. On the wire,
// rows are in (server, slot) order, as in Routed. The caller sees rows in groups, one group per parameter, and the rows
// of a group are contiguous. With a single group, both layouts share the same memory.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "step/backend.h"

namespace springtide {

class RowSet;

// Shared by the row sets of one backend: the order of slots, and memory that later steps reuse.
class RowSource : public std::enable_shared_from_this<RowSource> {
 public:
  // `threads` take part in deduplicating, pooling and reducing one large batch; the caller is one of them.
  explicit RowSource(std::shared_ptr<Backend> backend, uint32_t threads = 1);
  ~RowSource();

  const std::shared_ptr<Backend>& backend() const { return backend_; }
  // Slots in (server, slot) order, by the current placement.
  struct Buckets {
    uint64_t version = 0;                  // of the placement
    std::vector<uint32_t> bucket_of_slot;  // the bucket of each slot
    std::vector<uint32_t> server_bucket;   // each server's first bucket, servers + 1
  };
  std::shared_ptr<const Buckets> buckets() const;

  const std::shared_ptr<ThreadPool>& crew() const { return pool_; }

  // An empty set that reuses the buffers of an unused set. Dropping a set never waits: while its rows are being pulled,
  // its memory is kept here.
  std::shared_ptr<RowSet> take();

 private:
  void give_back(std::unique_ptr<RowSet> set);
  void collect_arrived();

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<ThreadPool> pool_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Buckets> buckets_;
  std::vector<std::unique_ptr<RowSet>> free_;
  std::vector<std::unique_ptr<RowSet>> in_flight_;  // dropped sets to which replies may still be written
};

// Memory for floats that grows and never shrinks.
class FloatBuffer {
 public:
  float* get(Backend& backend, size_t floats) {
    if (floats > size_) {
      memory_.reset();
      size_ = floats + floats / 4 + 1024;
      memory_ = backend.buffer(size_);
    }
    return memory_.get();
  }
  float* data() const { return memory_.get(); }

 private:
  std::shared_ptr<float> memory_;
  size_t size_ = 0;
};

// Unique (table, key) pairs in the order they were first seen, before they are routed. Each table has a run with room
// for all its ids, so that threads can fill several tables in parallel. Memory between runs is undefined.
struct UniqueKeys {
  struct Run {
    TableId table = 0;
    uint16_t group = 0;
    uint32_t dim = 0;
    uint32_t begin = 0, end = 0;
    uint32_t size() const { return end - begin; }
  };
  std::vector<Run> runs;
  std::vector<Key> keys;
  std::vector<uint64_t> hashes;
  uint32_t room = 0;

  // Adds an empty run with room for `wanted` keys.
  void add_run(TableId table, uint32_t dim, uint16_t group, size_t wanted) {
    runs.push_back({table, group, dim, room, room});
    room += static_cast<uint32_t>(wanted);
    if (keys.size() < room) {
      keys.resize(room);
      hashes.resize(room);
    }
  }
  void add(Run& run, Key key, uint64_t hash) {
    keys[run.end] = key;
    hashes[run.end++] = hash;
  }
  size_t count() const {
    size_t sum = 0;
    for (const Run& run : runs) sum += run.size();
    return sum;
  }
  void clear() {
    runs.clear();
    room = 0;
  }
};

class RowSet : public NoCopy {
 public:
  explicit RowSet(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  ~RowSet();

  // Orders unique() by (server, slot) and computes the layout of the rows. `groups`: number of groups.
  void route(const RowSource& source, size_t groups);
  // For a set whose keys are pulled repeatedly: before each pull, keys of moved slots are routed again.
  void follow(std::weak_ptr<RowSource> source) { followed_ = std::move(source); }
  UniqueKeys& unique() { return unique_; }
  const UniqueKeys& unique() const { return unique_; }
  const Routed& routed() const { return routed_; }
  // Float offset of unique i in rows() and grads(), the caller's layout.
  std::span<const uint32_t> user_offset() const { return user_offset_; }
  std::span<const uint32_t> group_begin() const { return group_begin_; }  // size groups + 1, in floats
  size_t floats() const { return group_begin_.empty() ? 0 : group_begin_.back(); }

  std::vector<uint32_t>& occurrence_offsets() { return occurrence_offsets_; }  // memory for step_rows.h

  std::span<float> rows() { return {rows_.data(), floats()}; }
  std::span<float> grads();  // initialized to zero by the first call

  // Sends one request for several sets; each set can be waited for separately.
  static void pull(std::span<const std::shared_ptr<RowSet>> sets, const PullMeta& meta);
  void wait();
  bool pulling() const { return pulling_ != nullptr; }  // pulled and not waited for
  bool arrived() const { return pulling_->done(); }     // while pulling()
  void forget_pull() { pulling_.reset(); }  // the last set of a request blocks until nothing uses its memory

  // Marks a group whose gradients will be pushed. The push omits other groups, as if the set had no keys of them.
  void touch(size_t group) { touched_.at(group) = 1; }
  void untouch(size_t group) { touched_.at(group) = 0; }
  bool touched(size_t group) const { return touched_.at(group) != 0; }
  void drop_grads();                   // sets gradients to zero and unmarks all groups
  void suspect() { suspect_ = true; }  // a non-finite gradient was seen
  // The gradients of touched groups as a part of a push. Throws NonFinite naming `name_of(table)` and the key.
  Part push_part(const std::vector<std::pair<TableId, std::string>>& names, bool always_check);
  // The values of rows() in wire order, for Backend::assign.
  Part assign_part();

  // By server: the number of pushes it had applied when it read the rows from which gradients are computed. These rows
  // are the latest that a caller waited for. After hold_basis(), they are the rows at its last call.
  std::span<const uint64_t> basis() const { return basis_; }
  void hold_basis();  // gradients are computed from the current rows until the next call
  void join_basis(const RowSet& other);

  void reset();  // keeps allocated memory

 private:
  bool same_layout() const { return group_begin_.size() <= 2; }
  void check_finite(const std::vector<std::pair<TableId, std::string>>& names);
  void lay_out(size_t groups);
  float* copy_to(FloatBuffer& buffer, const float* from);  // in wire order
  float* select_touched(FloatBuffer& buffer);              // gradients of touched groups, planned by selected_
  void catch_up();

  std::shared_ptr<Backend> backend_;  // declared first: buffers may belong to it
  UniqueKeys unique_;
  Routed routed_;
  std::vector<uint32_t> position_;     // routed row of unique i
  std::vector<uint32_t> user_offset_;  // by unique index
  std::vector<uint32_t> group_begin_;
  std::vector<uint32_t> occurrence_offsets_;
  std::vector<uint8_t> touched_;
  std::vector<uint32_t> buckets_;  // scratch of the counting sort
  Routed selected_;                // the plan of a push, if it differs from routed_
  FloatBuffer rows_, grads_, wire_;
  FloatBuffer pushed_;  // gradients in flight, for a set that uses follow()
  std::weak_ptr<RowSource> followed_;
  std::shared_ptr<Pending> pulling_;
  std::vector<uint64_t> seen_, basis_;  // pushes applied by each server: for the current rows, for the rows in use
  bool holds_basis_ = false;
  bool grads_ready_ = false;
  bool suspect_ = false;
};

}  // namespace springtide
