// Rows of one request: unique keys routed to servers, with their values and gradients. step_rows.h builds on this
// class. In messages, rows are in (server, slot) order, as in Routed. The caller sees rows in groups, one group per
// parameter, and the rows of a group are contiguous. With only one group, both layouts share the same memory. A caller
// that copies rows to a GPU sees them in message order, which saves a copy of each row.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "step/backend.h"

namespace springtide {

class RowSet;

// State that all row sets of one backend share: the order of slots, and memory that later steps reuse.
class RowSource : public std::enable_shared_from_this<RowSource> {
 public:
  // `threads` threads deduplicate, pool and reduce one large batch together. The caller is one of these threads.
  explicit RowSource(std::shared_ptr<Backend> backend, uint32_t threads = 1);
  ~RowSource();

  const std::shared_ptr<Backend>& backend() const { return backend_; }
  // Slots in (server, slot) order, by the current placement.
  struct Buckets {
    uint64_t version = 0;                  // of the placement
    std::vector<uint32_t> bucket_of_slot;  // the bucket of each slot
    std::vector<uint32_t> server_bucket;   // the first bucket of each server; of size servers + 1
  };
  std::shared_ptr<const Buckets> buckets() const;

  const std::shared_ptr<ThreadPool>& crew() const { return pool_; }

  // Returns an empty set that reuses the buffers of an unused set. Dropping a set never waits: while its rows are being
  // pulled, this object owns the set's memory.
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

// Memory for floats, which grows and never shrinks. The memory begins and ends at a page, because Python registers
// whole pages with the driver of a GPU.
class FloatBuffer {
 public:
  static constexpr size_t kPage = 4096 / sizeof(float);
  float* get(Backend& backend, size_t floats) {
    if (floats > size_) {
      memory_.reset();
      size_ = (floats + floats / 4 + kPage) / kPage * kPage;
      const std::shared_ptr<float> all = backend.buffer(size_ + kPage);
      const auto address = reinterpret_cast<uintptr_t>(all.get());
      constexpr size_t kBytes = kPage * sizeof(float);
      memory_ = {all, all.get() + (kBytes - address % kBytes) % kBytes / sizeof(float)};
    }
    return memory_.get();
  }
  float* data() const { return memory_.get(); }
  const std::shared_ptr<float>& memory() const { return memory_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<float> memory_;
  size_t size_ = 0;
};

// Unique (table, key) pairs in the order in which they were first seen, before they are routed. Each table has a run
// with room for all its ids, so that threads can fill several tables in parallel. Memory between runs is undefined.
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

  // Orders unique() by (server, slot) and computes the layout of the rows. `groups` is the number of groups. With
  // `wire_order`, the caller sees the rows in message order.
  void route(const RowSource& source, size_t groups, bool wire_order = false);
  // Prepares a set whose keys are pulled again and again: before each pull, keys of slots that have moved are routed
  // again.
  void follow(std::weak_ptr<RowSource> source) { followed_ = std::move(source); }
  UniqueKeys& unique() { return unique_; }
  const UniqueKeys& unique() const { return unique_; }
  const Routed& routed() const { return routed_; }
  // Returns the float offset of unique key i in rows() and grads(), which have the caller's layout.
  std::span<const uint32_t> user_offset() const { return user_offset_; }
  std::span<const uint32_t> group_begin() const { return group_begin_; }  // size groups + 1, in floats
  size_t floats() const { return group_begin_.empty() ? 0 : group_begin_.back(); }

  std::vector<uint32_t>& occurrence_offsets() { return occurrence_offsets_; }  // memory for step_rows.h

  std::span<float> rows() { return {rows_.data(), floats()}; }
  std::span<float> grads();  // initialized to zero by the first call
  // The same memory, for a caller that writes every gradient. Requires wire order.
  std::span<float> written_grads();
  // Returns the rows of a group's keys in message order, given that all rows have the same length.
  std::vector<int64_t> rows_of_group(size_t group) const;
  // Memory of rows and gradients.
  std::array<FloatBuffer*, 2> buffers() { return {&rows_, &grads_}; }

  // Sends one request for several sets. The caller can wait for each set separately.
  static void pull(std::span<const std::shared_ptr<RowSet>> sets, const PullMeta& meta);
  void wait();
  bool pulling() const { return pulling_ != nullptr; }  // true if the set was pulled and nobody has waited for it
  bool arrived() const { return pulling_->done(); }     // call this function only while pulling()
  void forget_pull() { pulling_.reset(); }              // the last set of a request waits until nothing uses its memory

  // Marks a group whose gradients will be pushed. A push leaves out all other groups, as if the set had no keys of
  // them.
  void touch(size_t group) { touched_.at(group) = 1; }
  void untouch(size_t group) { touched_.at(group) = 0; }
  bool touched(size_t group) const { return touched_.at(group) != 0; }
  // Marks unique i as read but not trained. The push omits the key's row unless the caller has given the row a
  // gradient: an optimizer may change a row whose gradient is zero (weight decay, FTRL).
  void read_only(uint32_t i) { read_only_.push_back(i); }
  bool is_read_only(uint32_t i) const { return std::find(read_only_.begin(), read_only_.end(), i) != read_only_.end(); }
  void drop_grads();                   // sets gradients to zero, and unmarks all groups
  void suspect() { suspect_ = true; }  // a non-finite gradient was seen
  // Returns the part of a push that has the gradients of the groups marked by touch(). Throws NonFinite with the key
  // and the table's name in `names`.
  Part push_part(const std::vector<std::pair<TableId, std::string>>& names, bool always_check);
  // Returns the values of rows() in wire order, for Backend::assign.
  Part assign_part();

  // For each server, the number of pushes that it had applied when it read the rows from which gradients are computed.
  // These rows are the latest ones that a caller waited for. After hold_basis(), they are the rows at its last call.
  std::span<const uint64_t> basis() const { return basis_; }
  void hold_basis();  // gradients are computed from the current rows until this is called again
  void join_basis(const RowSet& other);
  // Gradients of this set are computed from the rows of a second set with the same keys. Keys of slots that have moved
  // are routed again.
  void base_on(const RowSet& values);

  void reset();  // keeps allocated memory

 private:
  bool same_layout() const { return wire_order_ || group_begin_.size() <= 2; }
  template <class Work>
  void for_each_run(const RowSource& source, const Work& work);
  void count_slots(const RowSource& source, const RowSource::Buckets& where);
  void check_finite(const std::vector<std::pair<TableId, std::string>>& names);
  void lay_out(size_t groups);
  float* copy_to(FloatBuffer& buffer, const float* from);  // in wire order
  bool is_pushed(const UniqueKeys::Run& run, uint32_t i) const;
  float* select_pushed(FloatBuffer& buffer);  // gradients of pushed rows, as planned in selected_
  void catch_up();

  std::shared_ptr<Backend> backend_;  // declared first, because buffers may belong to it
  UniqueKeys unique_;
  Routed routed_;
  std::vector<uint32_t> position_;     // routed row of unique i
  std::vector<uint32_t> user_offset_;  // by unique index
  std::vector<uint32_t> group_begin_;
  std::vector<uint32_t> occurrence_offsets_;
  std::vector<uint8_t> touched_;
  std::vector<uint32_t> read_only_;  // unique indices, few
  std::vector<uint32_t> buckets_;    // scratch of the counting sort: next row of each bucket
  uint32_t rows_of_buckets_ = 1;
  Routed selected_;  // the plan of a push, if it differs from routed_
  FloatBuffer rows_, grads_, wire_;
  FloatBuffer pushed_;  // gradients in flight, for a set on which follow() was called
  std::weak_ptr<RowSource> followed_;
  std::shared_ptr<Pending> pulling_;
  // pushes that each server had applied: for the current rows, and for the rows in use
  std::vector<uint64_t> seen_, basis_;
  bool holds_basis_ = false;
  bool grads_ready_ = false;
  bool suspect_ = false;
  bool wire_order_ = false;
};

}  // namespace springtide
