#include "step/row_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "store/kernels/finite.h"

namespace springtide {

namespace {

constexpr size_t kKeptSets = 16;  // few sets are in use at a time: prefetched, current and pushed

constexpr size_t kKeysACounter = 4;  // fewer keys for each counter of a bucket are not worth a counter for each run

constexpr uint32_t kNone = ~0u;

void copy_row(float* to, const float* from, uint32_t dim) { std::memcpy(to, from, dim * sizeof(float)); }

}  // namespace

RowSource::RowSource(std::shared_ptr<Backend> backend, uint32_t threads)
    : backend_(std::move(backend)), pool_(std::make_shared<ThreadPool>(threads)) {}

std::shared_ptr<const RowSource::Buckets> RowSource::buckets() const {
  const std::shared_ptr<const Placement> placement = backend_->placement();
  std::lock_guard lock(mutex_);
  if (buckets_ && buckets_->version == placement->version) return buckets_;
  auto fresh = std::make_shared<Buckets>();
  fresh->version = placement->version;
  fresh->bucket_of_slot.resize(placement->server_of_slot.size());
  fresh->server_bucket.assign(placement->servers + 1u, 0);
  for (uint16_t server : placement->server_of_slot) fresh->server_bucket.at(server + 1u) += 1;
  for (size_t s = 0; s < placement->servers; ++s) fresh->server_bucket[s + 1] += fresh->server_bucket[s];
  std::vector<uint32_t> next(fresh->server_bucket.begin(), fresh->server_bucket.end());
  for (size_t slot = 0; slot < fresh->bucket_of_slot.size(); ++slot)
    fresh->bucket_of_slot[slot] = next[placement->server_of_slot[slot]]++;
  buckets_ = std::move(fresh);
  return buckets_;
}

// All sets of a request are kept until the caller has dropped every one of them, because the request writes to their
// memory.
RowSource::~RowSource() {
  for (const auto& set : in_flight_) set->forget_pull();
}

std::shared_ptr<RowSet> RowSource::take() {
  collect_arrived();
  std::unique_ptr<RowSet> set;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      set = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!set) set = std::make_unique<RowSet>(backend_);
  const auto give_back = [source = shared_from_this()](RowSet* used) {
    source->give_back(std::unique_ptr<RowSet>(used));
  };
  return {set.release(), give_back};
}

void RowSource::give_back(std::unique_ptr<RowSet> set) {
  const bool pulling = set->pulling();
  if (!pulling) set->reset();
  std::lock_guard lock(mutex_);
  if (pulling) {
    in_flight_.push_back(std::move(set));
  } else if (free_.size() < kKeptSets) {
    free_.push_back(std::move(set));
  }
}

void RowSource::collect_arrived() {
  std::vector<std::unique_ptr<RowSet>> arrived;
  {
    std::lock_guard lock(mutex_);
    const auto first = std::partition(in_flight_.begin(), in_flight_.end(), [](auto& set) { return !set->arrived(); });
    arrived.assign(std::make_move_iterator(first), std::make_move_iterator(in_flight_.end()));
    in_flight_.erase(first, in_flight_.end());
  }
  for (auto& set : arrived) {
    set->reset();
    give_back(std::move(set));
  }
}

RowSet::~RowSet() { reset(); }

void RowSet::reset() {
  if (pulling_) {
    // The caller no longer needs the rows, but a reply may still be written to them.
    try {
      pulling_->wait();
    } catch (const std::exception&) {
      pulling_.reset();  // no caller waits for this pull, so the next request for rows reports the error
    }
  }
  pulling_.reset();
  unique_.clear();
  read_only_.clear();
  group_begin_.clear();
  grads_ready_ = suspect_ = holds_basis_ = wire_order_ = false;
  seen_.clear();
  basis_.clear();
  followed_.reset();
}

void RowSet::hold_basis() {
  holds_basis_ = true;
  basis_ = seen_;
}

void RowSet::join_basis(const RowSet& other) {
  basis_.resize(std::max(basis_.size(), other.basis_.size()), kNotSeen);
  for (size_t s = 0; s < other.basis_.size(); ++s) basis_[s] = std::min(basis_[s], other.basis_[s]);
}

void RowSet::base_on(const RowSet& values) {
  catch_up();
  basis_ = values.basis_;
  holds_basis_ = true;
}

// Only sets whose caller uses a separate layout can change their wire layout.
void RowSet::catch_up() {
  const auto source = followed_.lock();
  if (!source || source->buckets()->version == routed_.version) return;
  const std::vector<uint8_t> touched = touched_;
  route(*source, group_begin_.size() - 1, wire_order_);
  touched_ = touched;
}

// Calls work(run, the run's row of buckets_) for every run. If the keys are many, each run has its own row, so that
// threads can divide the runs. Otherwise all runs share one row, which is faster to clear.
template <class Work>
void RowSet::for_each_run(const RowSource& source, const Work& work) {
  const size_t slots = buckets_.size() / rows_of_buckets_;
  if (rows_of_buckets_ == 1) {
    for (const auto& run : unique_.runs) work(run, buckets_.data());
    return;
  }
  source.crew()->run(rows_of_buckets_, [&](uint32_t r) { work(unique_.runs[r], buckets_.data() + r * slots); });
}

// Finds the bucket of every key, and counts the keys of each bucket. Afterwards, buckets_ has the routed row of each
// run's first key of a bucket.
void RowSet::count_slots(const RowSource& source, const RowSource::Buckets& where) {
  const auto slots = static_cast<uint32_t>(where.bucket_of_slot.size());
  const size_t runs = unique_.runs.size();
  rows_of_buckets_ = unique_.room / kKeysACounter > runs * slots ? static_cast<uint32_t>(runs) : 1;
  buckets_.assign(size_t{rows_of_buckets_} * slots, 0);
  position_.resize(unique_.room);
  for_each_run(source, [&](const UniqueKeys::Run& run, uint32_t* counts) {
    for (uint32_t i = run.begin; i < run.end; ++i) {
      position_[i] = where.bucket_of_slot[slot_of(unique_.hashes[i], slots)];
      counts[position_[i]] += 1;
    }
  });
  uint32_t next = 0;
  const auto servers = static_cast<uint32_t>(where.server_bucket.size());
  routed_.server_begin.resize(servers);
  uint32_t server = 0;
  for (uint32_t b = 0; b < slots; ++b) {
    while (server < servers && where.server_bucket[server] == b) routed_.server_begin[server++] = next;
    for (uint32_t r = 0; r < rows_of_buckets_; ++r) {
      uint32_t& count = buckets_[size_t{r} * slots + b];
      next += std::exchange(count, next);
    }
  }
  while (server < servers) routed_.server_begin[server++] = next;
}

void RowSet::route(const RowSource& source, size_t groups, bool wire_order) {
  const size_t n = unique_.count();
  const auto where = source.buckets();
  wire_order_ = wire_order;
  routed_.version = where->version;
  count_slots(source, *where);
  routed_.tables.resize(n);
  routed_.keys.resize(n);
  routed_.row_offset.resize(n + 1);
  routed_.row_offset[0] = 0;
  group_begin_.assign(groups + 1, 0);
  uint64_t floats = 0;
  for (const auto& run : unique_.runs) {
    const uint64_t run_floats = uint64_t{run.dim} * run.size();
    floats += run_floats;
    group_begin_[run.group + 1u] += static_cast<uint32_t>(run_floats);
  }
  if (floats > std::numeric_limits<uint32_t>::max() - 1)
    throw BadInput("a batch needs ", floats, " floats of rows, more than 2^32 - 2: use smaller batches");
  for_each_run(source, [&](const UniqueKeys::Run& run, uint32_t* next) {
    for (uint32_t i = run.begin; i < run.end; ++i) {
      const uint32_t at = next[position_[i]]++;
      position_[i] = at;
      routed_.tables[at] = run.table;
      routed_.keys[at] = unique_.keys[i];
      routed_.row_offset[at + 1] = run.dim;
    }
  });
  for (size_t r = 0; r < n; ++r) routed_.row_offset[r + 1] += routed_.row_offset[r];
  lay_out(groups);
  touched_.assign(groups, 0);
  rows_.get(*backend_, floats);
}

void RowSet::lay_out(size_t groups) {
  user_offset_.resize(unique_.room);
  for (size_t g = 0; g < groups; ++g) group_begin_[g + 1] += group_begin_[g];
  if (same_layout()) {
    for (const auto& run : unique_.runs)
      for (uint32_t i = run.begin; i < run.end; ++i) user_offset_[i] = routed_.row_offset[position_[i]];
    return;
  }
  std::vector<uint32_t> next(group_begin_.begin(), group_begin_.end());
  for (const auto& run : unique_.runs)
    for (uint32_t i = run.begin; i < run.end; ++i) {
      user_offset_[i] = next[run.group];
      next[run.group] += run.dim;
    }
}

std::span<float> RowSet::written_grads() {
  grads_ready_ = true;
  return {grads_.get(*backend_, floats()), floats()};
}

std::vector<int64_t> RowSet::rows_of_group(size_t group) const {
  std::vector<int64_t> rows;
  for (const auto& run : unique_.runs)
    if (run.group == group) rows.insert(rows.end(), position_.begin() + run.begin, position_.begin() + run.end);
  return rows;
}

std::span<float> RowSet::grads() {
  float* grads = grads_.get(*backend_, floats());
  if (!grads_ready_) std::fill_n(grads, floats(), 0.0f);
  grads_ready_ = true;
  return {grads, floats()};
}

void RowSet::pull(std::span<const std::shared_ptr<RowSet>> sets, const PullMeta& meta) {
  if (sets.empty()) return;
  std::vector<Part> parts;
  for (const auto& set : sets) {
    set->wait();
    set->catch_up();
    float* target = set->same_layout() ? set->rows_.data() : set->wire_.get(*set->backend_, set->floats());
    parts.push_back({&set->routed_, target});
  }
  std::shared_ptr<Pending> pending = sets[0]->backend_->pull(parts, meta);
  for (const auto& set : sets) set->pulling_ = pending;
}

void RowSet::wait() {
  if (!pulling_) return;
  auto pulling = std::move(pulling_);
  pulling->wait();
  seen_.assign(backend_->placement()->servers, kNotSeen);
  pulling->lower_seen(seen_);
  if (!holds_basis_) basis_ = seen_;
  if (same_layout()) return;
  for (const auto& run : unique_.runs)
    for (uint32_t i = run.begin; i < run.end; ++i)
      copy_row(rows_.data() + user_offset_[i], wire_.data() + routed_.row_offset[position_[i]], run.dim);
}

float* RowSet::copy_to(FloatBuffer& buffer, const float* from) {
  float* wire = buffer.get(*backend_, floats());
  for (const auto& run : unique_.runs)
    for (uint32_t i = run.begin; i < run.end; ++i)
      copy_row(wire + routed_.row_offset[position_[i]], from + user_offset_[i], run.dim);
  return wire;
}

void RowSet::drop_grads() {
  grads_ready_ = suspect_ = false;
  std::fill(touched_.begin(), touched_.end(), uint8_t{0});
}

void RowSet::check_finite(const std::vector<std::pair<TableId, std::string>>& names) {
  for (const auto& run : unique_.runs) {
    if (!touched_[run.group]) continue;
    for (uint32_t i = run.begin; i < run.end; ++i) {
      const float* row = grads_.data() + user_offset_[i];
      if (all_finite(row, run.dim)) continue;
      std::string name = std::to_string(run.table);
      for (const auto& [table, known] : names)
        if (table == run.table) name = "'" + known + "'";
      const float* bad = std::find_if_not(row, row + run.dim, [](float x) { return std::isfinite(x); });
      throw NonFinite("the gradient of table ", name, ", key ", unique_.keys[i], ", holds ",
                      (std::isnan(*bad) ? "NaN" : "infinity"),
                      "; nothing of this step was pushed. Look at the loss, lower the learning rate or clip");
    }
  }
}

bool RowSet::is_pushed(const UniqueKeys::Run& run, uint32_t i) const {
  if (!touched_[run.group]) return false;
  if (read_only_.empty() || !is_read_only(i)) return true;
  const float* row = grads_.data() + user_offset_[i];
  return std::any_of(row, row + run.dim, [](float x) { return x != 0; });
}

float* RowSet::select_pushed(FloatBuffer& buffer) {
  const size_t n = routed_.keys.size();
  std::vector<uint32_t> unique_at(n, kNone);  // for each routed row that is kept, its unique index
  std::vector<uint32_t> dim_at(n);
  for (const auto& run : unique_.runs)
    for (uint32_t i = run.begin; i < run.end; ++i) {
      if (!is_pushed(run, i)) continue;
      unique_at[position_[i]] = i;
      dim_at[position_[i]] = run.dim;
    }
  selected_.version = routed_.version;
  selected_.tables.clear();
  selected_.keys.clear();
  selected_.row_offset.assign(1, 0);
  selected_.server_begin.assign(1, 0);
  float* wire = buffer.get(*backend_, floats());
  const auto select = [&](uint32_t r) {
    if (unique_at[r] == kNone) return;
    const uint32_t at = selected_.row_offset.back();
    copy_row(wire + at, grads_.data() + user_offset_[unique_at[r]], dim_at[r]);
    selected_.tables.push_back(routed_.tables[r]);
    selected_.keys.push_back(routed_.keys[r]);
    selected_.row_offset.push_back(at + dim_at[r]);
  };
  routed_.for_each(select, [&] { selected_.server_begin.push_back(static_cast<uint32_t>(selected_.keys.size())); });
  return wire;
}

Part RowSet::push_part(const std::vector<std::pair<TableId, std::string>>& names, bool always_check) {
  wait();
  grads();
  if (suspect_ || always_check) check_finite(names);
  // A set that follows its slots may be pulled while its push is in flight. The pull changes routed_ and wire_, but a
  // refused push is sent again from its own memory. The push therefore needs its own copy.
  const bool pulled_meanwhile = !followed_.expired();
  FloatBuffer& wire = pulled_meanwhile ? pushed_ : wire_;
  if (!read_only_.empty() || std::find(touched_.begin(), touched_.end(), uint8_t{0}) != touched_.end()) {
    return {&selected_, select_pushed(wire)};
  }
  if (same_layout()) return {&routed_, grads_.data()};
  if (pulled_meanwhile) selected_ = routed_;
  return {pulled_meanwhile ? &selected_ : &routed_, copy_to(wire, grads_.data())};
}

Part RowSet::assign_part() {
  wait();
  if (same_layout()) return {&routed_, rows_.data()};
  return {&routed_, copy_to(wire_, rows_.data())};
}

}  // namespace springtide
