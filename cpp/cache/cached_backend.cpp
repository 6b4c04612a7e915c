// Tables, plans and rows of a cache. Pulls and pushes: cached_requests.cpp; between ranks:
// cached_exchange.cpp.
#include "cache/cached_backend.h"

#include <algorithm>

namespace springtide {

CachedBackend::CachedBackend(std::shared_ptr<Backend> inner)
    : inner_(std::move(inner)), staging_(std::make_shared<StagingPool>(inner_)) {}

void CachedBackend::declare(std::span<const TableSpec> tables) {
  inner_->declare(tables);
  const std::lock_guard lock(mutex_);
  tables_.declared(tables);
}

void CachedBackend::cache_tables(std::span<const TableId> tables) {
  const std::lock_guard lock(mutex_);
  tables_.keep(tables);
}

uint32_t CachedBackend::image_floats(TableId table) const {
  const std::lock_guard lock(mutex_);
  return tables_.known(table).image_floats();
}

void CachedBackend::set_plan(uint64_t step, CachePlan plan) {
  auto planned = std::make_unique<Planned>(std::move(plan));
  const std::lock_guard lock(mutex_);
  plans_[step] = std::move(planned);
}

void CachedBackend::move_plan(uint64_t step, uint64_t to) {
  const std::lock_guard lock(mutex_);
  const auto known = plans_.find(step);
  if (known == plans_.end()) throw BadInput("step " + std::to_string(step) + " has no plan that could be moved");
  auto planned = std::move(known->second);
  plans_.erase(known);
  plans_[to] = std::move(planned);
}

void CachedBackend::flush_next() {
  const std::lock_guard lock(mutex_);
  flush_next_ = true;
}

void CachedBackend::clear() {
  const std::lock_guard lock(mutex_);
  rows_.clear();
  borrowed_.clear();
  plans_.clear();
  flush_next_ = false;
  on_servers_ = true;
  pushed_ = 0;
  ++life_;
  under_way_.clear();
}

CachedBackend::Planned* CachedBackend::plan_of(uint64_t step) const {
  const auto known = plans_.find(step);
  return known == plans_.end() ? nullptr : known->second.get();
}

void CachedBackend::refuse(const std::string& what, TableId table, Key key) const {
  throw BadInput("key " + std::to_string(key) + " of table " + tables_.name_of(table) + " " + what);
}

CachedRow& CachedBackend::row_of(const char* list, TableId table, Key key) const {
  if (CachedRow* row = rows_.find(table, key)) return *row;
  refuse(std::string("is not in this worker's cache, where the plan has it (") + list +
             "); begin with a new schedule after the cache was cleared",
         table, key);
}

void CachedBackend::leave(CachedRow& row) {
  if (row.dirty) refuse("leaves the cache by plan but was never written back", row.table, row.key());
  rows_.erase(row);
  ++count_.dropped_rows;
}

void CachedBackend::begin(Planned& planned) {
  if (planned.begun) return;
  planned.begun = true;
  const CachePlan& plan = planned.plan;
  for (size_t i = 0; i < plan.write_back.size(); ++i) {
    const TableId table = plan.write_back.tables[i];
    if (row_of("write_back", table, plan.write_back.keys[i]).dirty)
      refuse("is to be written back, but the push of the step before is over; set a plan before that push", table,
             plan.write_back.keys[i]);
  }
  pack(planned);
  for (size_t i = 0; i < plan.drop.size(); ++i) {
    const TableId table = plan.drop.tables[i];
    const Key key = plan.drop.keys[i];
    if (planned.index.of(table, key) != PlannedUse::pass_hit) leave(row_of("drop", table, key));
  }
}

CacheStats CachedBackend::stats() const {
  const std::lock_guard lock(mutex_);
  CacheStats now = count_;
  now.rows = rows_.rows();
  now.bytes = rows_.bytes();
  now.dirty_rows = rows_.dirty_rows();
  now.dirty_bytes = rows_.dirty_bytes();
  return now;
}

}  // namespace springtide
