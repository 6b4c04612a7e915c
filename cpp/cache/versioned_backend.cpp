#include "cache/versioned_backend.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace springtide {

// Pulls the counts of all keys and the images of rows that are not cached, and then the images of copies that are too
// old. A count is read before its image, so the cache never considers a row newer than it is.
class VersionedPull final : public Pending {
 public:
  VersionedPull(VersionedBackend& backend, PullMeta meta) : backend_(backend), meta_(meta) {}

  std::vector<Part> start(std::span<const Part> parts) {
    std::vector<Part> asked;
    for (const Part& part : parts) {
      if (!backend_.tables_.any_of(*part.routed)) {
        asked.push_back(part);
        continue;
      }
      Request& request = requests_.emplace_back();
      for (auto* one : {&request.counts, &request.images, &request.values})
        *one = backend_.selection(part.routed->version);
      divide(part, request);
      for (auto* one : {&request.counts, &request.images, &request.values}) {
        if ((*one)->size() != 0) asked.push_back((*one)->part());
        backend_.count_.bytes_pulled += (*one)->wire_bytes();
      }
    }
    return asked;
  }
  void follow(std::unique_ptr<Pending> first) { first_ = std::move(first); }

  void wait() override {
    const std::lock_guard once(waiting_);
    if (home_) return;
    first_->wait();
    std::vector<Part> asked;
    {
      const std::lock_guard lock(backend_.mutex_);
      for (Request& request : requests_) take(request, asked);
    }
    if (!asked.empty()) {
      second_ = backend_.inner_->pull(asked, meta_);
      second_->wait();
      const std::lock_guard lock(backend_.mutex_);
      for (Request& request : requests_)
        for (size_t i = 0; i < request.again->size(); ++i) arrived(*request.again, i, request.again_counts[i]);
    }
    home_ = true;
  }
  bool done() override { return home_ || first_->done(); }
  void lower_seen(std::span<uint64_t> by_server) const override { first_->lower_seen(by_server); }

 private:
  struct Request {
    std::unique_ptr<RowSelection> counts, images, values, again;
    std::vector<uint8_t> here;           // for each count, whether a copy existed when the request was made
    std::vector<uint32_t> again_counts;  // counts of copies that are too old
  };

  void divide(const Part& part, Request& request) {
    const Routed& routed = *part.routed;
    const auto add = [&](uint32_t r) {
      const TableId id = routed.tables[r];
      float* home = part.rows + routed.row_offset[r];
      const CachedTable* table = backend_.tables_.of(id);
      if (table == nullptr) {
        return request.values->add(id, routed.keys[r], routed.row_offset[r + 1] - routed.row_offset[r], home);
      }
      const bool here = backend_.rows_.find(id, routed.keys[r]) != nullptr;
      request.counts->add(id | kCount, routed.keys[r], 1, home);
      request.here.push_back(here ? 1 : 0);
      if (!here) request.images->add(id | kImage, routed.keys[r], table->image_floats(), home);
    };
    routed.for_each(add, [&] {
      for (auto* one : {&request.counts, &request.images, &request.values}) (*one)->end_server();
    });
  }

  // Copies fresh rows to the caller first, because new rows may evict them from the cache.
  void take(Request& request, std::vector<Part>& asked) {
    request.values->copy_home();
    request.again = backend_.selection(request.counts->routed().version);
    const Routed& routed = request.counts->routed();
    const auto use_or_ask = [&](uint32_t r) {
      const TableId id = table_of(routed.tables[r]);
      const uint32_t count = count_at(request, r);
      float* home = request.counts->home(r);
      if (request.here[r] == 0 || backend_.use_copy(id, routed.keys[r], count, meta_.after_step != 0, home)) return;
      request.again->add(id | kImage, routed.keys[r], backend_.tables_.known(id).image_floats(), home);
      request.again_counts.push_back(count);
    };
    routed.for_each(use_or_ask, [&] { request.again->end_server(); });
    for (size_t r = 0, i = 0; r < request.here.size(); ++r) {
      if (request.here[r] != 0) continue;
      arrived(*request.images, i++, count_at(request, r));
      ++backend_.count_.misses;
    }
    backend_.count_.stale += request.again->size();
    backend_.count_.bytes_pulled += request.again->wire_bytes();
    if (request.again->size() != 0) asked.push_back(request.again->part());
  }

  static uint32_t count_at(const Request& request, size_t i) {
    return std::bit_cast<uint32_t>(*request.counts->row(i));
  }
  void arrived(const RowSelection& images, size_t i, uint32_t count) {
    const TableId id = table_of(images.routed().tables[i]);
    std::copy_n(images.row(i), backend_.tables_.known(id).spec.dim, images.home(i));
    backend_.enter(id, images.routed().keys[i], count, images.row(i));
  }

  VersionedBackend& backend_;
  const PullMeta meta_;
  std::mutex waiting_;
  bool home_ = false;
  std::vector<Request> requests_;
  std::unique_ptr<Pending> first_, second_;  // declared last, so that they are destroyed first
};

VersionedBackend::VersionedBackend(std::shared_ptr<Backend> inner, const VersionedOptions& options)
    : CachingBackend(std::move(inner)), options_(options) {
  if (options.staleness > INT32_MAX) throw BadInput("staleness must be at most 2^31 - 1");
}

void VersionedBackend::resize(uint64_t capacity_bytes) {
  const std::lock_guard lock(mutex_);
  options_.capacity_bytes = capacity_bytes;
  reserve_more(0);
}

void VersionedBackend::reserve_more(uint64_t bytes) {
  while (rows_.rows() != 0 && rows_.bytes() + bytes > options_.capacity_bytes) {
    rows_.erase(*rows_.next_victim());
    ++count_.evicted;
  }
}

void VersionedBackend::clear() {
  const std::lock_guard lock(mutex_);
  rows_.clear();
}

VersionedStats VersionedBackend::stats() const {
  const std::lock_guard lock(mutex_);
  VersionedStats now = count_;
  now.rows = rows_.rows();
  now.bytes = rows_.bytes();
  return now;
}

bool VersionedBackend::use_copy(TableId table, Key key, uint32_t count, bool settled, float* home) {
  CachedRow* row = rows_.find(table, key);
  if (row == nullptr) return false;  // evicted meanwhile
  // The difference is negative if the count does not include a push of this worker that has not reached the server.
  // After a step, no push is in flight.
  const auto lacks = static_cast<int32_t>(count - static_cast<uint32_t>(row->version));
  if (lacks > static_cast<int32_t>(options_.staleness) || lacks < (settled ? 0 : -kOwnUnderWay)) return false;
  std::copy_n(row->image, tables_.known(table).spec.dim, home);
  rows_.touch(*row);
  const auto missing = static_cast<uint64_t>(std::max(lacks, 0));
  ++count_.hits;
  count_.staleness_sum += missing;
  count_.staleness_max = std::max(count_.staleness_max, missing);
  return true;
}

void VersionedBackend::enter(TableId table, Key key, uint32_t count, const float* image) {
  const uint32_t floats = tables_.known(table).image_floats();
  CachedRow* row = rows_.find(table, key);
  if (row == nullptr) {
    const uint64_t bytes = RowCache::row_bytes(floats);
    if (bytes > options_.capacity_bytes) return;
    reserve_more(bytes);
    row = &rows_.insert(table, key, floats);
  }
  std::copy_n(image, floats, row->image);
  row->version = count;
  rows_.touch(*row);
}

std::unique_ptr<Pending> VersionedBackend::pull(std::span<const Part> parts, const PullMeta& meta) {
  auto pulling = std::make_unique<VersionedPull>(*this, meta);
  std::vector<Part> asked;
  {
    const std::lock_guard lock(mutex_);
    asked = pulling->start(parts);
  }
  pulling->follow(inner_->pull(asked, meta));
  return pulling;
}

std::unique_ptr<Pending> VersionedBackend::push(std::span<const Part> parts, const PushMeta& meta) {
  auto pending = inner_->push(parts, meta);
  const std::lock_guard lock(mutex_);
  RowTraining training;
  for (const Part& part : parts) {
    const Routed& routed = *part.routed;
    for (size_t r = 0; r < routed.keys.size(); ++r) {
      const CachedTable* table = tables_.of(routed.tables[r]);
      if (table == nullptr) continue;
      ++count_.pushed_gradients;
      count_.bytes_pushed += table->spec.dim * sizeof(float) + sizeof(Key) + sizeof(TableId);
      if (CachedRow* row = rows_.find(routed.tables[r], routed.keys[r])) {
        training.add(*row, *table, part.rows + routed.row_offset[r], meta.unique);
        ++row->version;  // the server counts each gradient, even for duplicate keys
      }
    }
  }
  training.apply(tables_, meta, [](CachedRow&) {});
  count_.trained_rows += training.size();
  return pending;
}

void VersionedBackend::assign(std::span<const Part> parts, bool keep) {
  inner_->assign(parts, keep);
  const std::lock_guard lock(mutex_);
  for (const Part& part : parts)
    for (size_t r = 0; r < part.routed->keys.size(); ++r)
      if (CachedRow* row = rows_.find(table_of(part.routed->tables[r]), part.routed->keys[r])) rows_.erase(*row);
}

}  // namespace springtide
