// Tables, plans and rows of a cache, and the exchange of rows between ranks. cached_requests.cpp has the pulls and
// pushes.
#include "cache/cached_backend.h"

#include <algorithm>

#include "store/kernels/finite.h"

namespace springtide {

namespace {

const PlanKeys* keys_of(const std::vector<PeerRows>& all, uint32_t peer) {
  for (const PeerRows& one : all)
    if (one.peer == peer) return &one.rows;
  return nullptr;
}

void check_size(const CachedBackend::Sizes& wanted, uint64_t step, uint32_t peer, size_t floats) {
  const auto of_peer = std::find_if(wanted.begin(), wanted.end(), [&](auto& one) { return one.first == peer; });
  const size_t planned = of_peer == wanted.end() ? 0 : of_peer->second;
  if (of_peer != wanted.end() && planned == floats) return;
  throw BadInput("rank ", peer, " sent ", floats, " floats for step ", step, "; the plan has ", planned);
}

}  // namespace

void CachedBackend::set_plan(uint64_t step, CachePlan plan) {
  auto planned = std::make_unique<Planned>(std::move(plan));
  const std::lock_guard lock(mutex_);
  plans_[step] = std::move(planned);
}

void CachedBackend::move_plan(uint64_t step, uint64_t to) {
  const std::lock_guard lock(mutex_);
  const auto known = plans_.find(step);
  if (known == plans_.end()) throw BadInput("step ", step, " has no plan that could be moved");
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
  throw BadInput("key ", key, " of table ", tables_.name_of(table), " ", what);
}

CachedRow& CachedBackend::row_of(const char* list, TableId table, Key key) const {
  if (CachedRow* row = rows_.find(table, key)) return *row;
  refuse(std::string("is not in this worker's cache, but the plan expects it there (") + list +
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
      refuse("must be written back, but the push of the previous step is over; set the plan before that push", table,
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

// Exchange of rows and gradients between the caches of two ranks. The functions are a part of CachedBackend.
CachedBackend::Planned& CachedBackend::known_plan(uint64_t step) const {
  if (Planned* planned = plan_of(step)) return *planned;
  throw BadInput("step ", step, " has no plan, so nothing comes from other ranks for it");
}

// Returns how many floats to exchange with each rank. An image has one more float: its dirty flag. `others` are values
// or gradients; gradient_receives() adds one float to each gradient.
CachedBackend::Sizes CachedBackend::sizes(const std::vector<PeerRows>& images,
                                          const std::vector<PeerRows>& others) const {
  std::map<uint32_t, size_t> by_rank;
  for (const PeerRows& one : images)
    for (const TableId table : one.rows.tables) by_rank[one.peer] += tables_.known(table).image_floats() + 1;
  for (const PeerRows& one : others)
    for (const TableId table : one.rows.tables) by_rank[one.peer] += tables_.known(table).spec.dim;
  return {by_rank.begin(), by_rank.end()};
}

// Call this function after the rows of the previous step were trained, and before any row is removed.
void CachedBackend::pack(Planned& planned) {
  const CachePlan& plan = planned.plan;
  for (const auto& [peer, floats] : sizes(plan.sends, plan.value_sends)) {
    RankBuffer& parcel = planned.sends.emplace_back(RankBuffer{peer, {}});
    parcel.floats.reserve(floats);
    if (const PlanKeys* keys = keys_of(plan.value_sends, peer)) {
      for (size_t i = 0; i < keys->size(); ++i) {
        const CachedRow& row = row_of("value_sends", keys->tables[i], keys->keys[i]);
        parcel.floats.insert(parcel.floats.end(), row.image, row.image + tables_.known(row.table).spec.dim);
      }
      count_.sent_rows += keys->size();
    }
    if (const PlanKeys* keys = keys_of(plan.sends, peer)) {
      for (size_t i = 0; i < keys->size(); ++i) {
        CachedRow& row = row_of("sends", keys->tables[i], keys->keys[i]);
        parcel.floats.insert(parcel.floats.end(), row.image, row.image + row.floats);
        parcel.floats.push_back(row.dirty ? 1.0f : 0.0f);
        rows_.set_dirty(row, false);  // from now on, the receiver must write the row back
      }
      count_.sent_rows += keys->size();
    }
  }
}

std::vector<CachedBackend::RankBuffer> CachedBackend::sends(uint64_t step) {
  const std::lock_guard lock(mutex_);
  Planned* planned = plan_of(step);
  if (planned == nullptr) return {};
  begin(*planned);
  return std::move(planned->sends);
}

CachedBackend::Sizes CachedBackend::receives(uint64_t step) const {
  const std::lock_guard lock(mutex_);
  const Planned* planned = plan_of(step);
  return planned == nullptr ? Sizes() : sizes(planned->plan.receives, planned->plan.value_receives);
}

CachedBackend::Sizes CachedBackend::gradient_receives(uint64_t step) const {
  const std::lock_guard lock(mutex_);
  const Planned* planned = plan_of(step);
  if (planned == nullptr) return {};
  Sizes all = sizes({}, planned->plan.gradient_receives);
  for (auto& [peer, floats] : all) floats += keys_of(planned->plan.gradient_receives, peer)->size();
  return all;
}

void CachedBackend::received(uint64_t step, uint32_t peer, std::span<const float> floats) {
  check_size(receives(step), step, peer, floats.size());
  const std::lock_guard lock(mutex_);
  Planned& planned = known_plan(step);
  begin(planned);  // this makes room first
  const float* at = floats.data();
  if (const PlanKeys* keys = keys_of(planned.plan.value_receives, peer)) {
    for (size_t i = 0; i < keys->size(); ++i) {
      CachedRow& row = borrowed_.insert(keys->tables[i], keys->keys[i], tables_.known(keys->tables[i]).spec.dim);
      std::copy_n(at, row.floats, row.image);
      at += row.floats;
    }
    count_.received_rows += keys->size();
  }
  if (const PlanKeys* keys = keys_of(planned.plan.receives, peer)) {
    for (size_t i = 0; i < keys->size(); ++i) {
      CachedRow& row = rows_.insert(keys->tables[i], keys->keys[i], tables_.known(keys->tables[i]).image_floats());
      std::copy_n(at, row.floats, row.image);
      rows_.set_dirty(row, at[row.floats] != 0);
      at += row.floats + 1;
    }
    count_.received_rows += keys->size();
  }
}

std::vector<CachedBackend::RankBuffer> CachedBackend::gradient_sends(uint64_t step, std::span<const Part> parts) const {
  const std::lock_guard lock(mutex_);
  const Planned* planned = plan_of(step);
  std::vector<RankBuffer> all;
  if (planned == nullptr || planned->plan.gradient_sends.empty()) return all;
  std::map<std::pair<TableId, Key>, const float*> own;
  for (const Part& part : parts) {
    const Routed& routed = *part.routed;
    for (size_t r = 0; r < routed.keys.size(); ++r) {
      if (!planned->index.given(routed.tables[r], routed.keys[r])) continue;
      if (!own.emplace(std::pair(routed.tables[r], routed.keys[r]), part.rows + routed.row_offset[r]).second)
        refuse("has two gradients in a step that gives them to another rank", routed.tables[r], routed.keys[r]);
    }
  }
  for (const PeerRows& to : planned->plan.gradient_sends) {
    RankBuffer& parcel = all.emplace_back(RankBuffer{to.peer, {}});
    for (size_t i = 0; i < to.rows.size(); ++i) {
      const uint32_t dim = tables_.known(to.rows.tables[i]).spec.dim;
      const auto found = own.find({to.rows.tables[i], to.rows.keys[i]});
      parcel.floats.push_back(found == own.end() ? 0.0f : 1.0f);
      if (found == own.end()) {
        parcel.floats.resize(parcel.floats.size() + dim);
      } else if (all_finite(found->second, dim)) {
        parcel.floats.insert(parcel.floats.end(), found->second, found->second + dim);
      } else {
        throw_non_finite(to.rows.keys[i], tables_.known(to.rows.tables[i]));
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const RankBuffer& a, const RankBuffer& b) { return a.peer < b.peer; });
  return all;
}

void CachedBackend::gradients_received(uint64_t step, uint32_t peer, std::span<const float> floats) {
  check_size(gradient_receives(step), step, peer, floats.size());
  const std::lock_guard lock(mutex_);
  known_plan(step).gradients[peer].assign(floats.begin(), floats.end());
}

// Adds the gradients that were received from the ranks before or after this rank, so that sums are in rank order as on
// a server.
void CachedBackend::add_received(const Planned& planned, bool before_own, RowTraining& training) const {
  std::map<uint32_t, const PlanKeys*> by_rank;
  for (const PeerRows& from : planned.plan.gradient_receives)
    if ((from.peer < planned.plan.rank) == before_own) by_rank[from.peer] = &from.rows;
  for (const auto& [peer, keys] : by_rank) {
    const auto parcel = planned.gradients.find(peer);
    throw_if<BadInput>(parcel == planned.gradients.end(), "gradients of rank ", peer, " have not come for step ",
                       planned.plan.step, "; take them before the push");
    const float* at = parcel->second.data();
    for (size_t i = 0; i < keys->size(); ++i) {
      const CachedTable& table = tables_.known(keys->tables[i]);
      if (*at != 0) training.add(row_of("hold", keys->tables[i], keys->keys[i]), table, at + 1, false);
      at += 1 + table.spec.dim;
    }
  }
}

}  // namespace springtide
