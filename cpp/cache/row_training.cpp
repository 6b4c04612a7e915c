#include "cache/row_training.h"

#include <algorithm>

#include "base/half.h"
#include "store/kernels/finite.h"

namespace springtide {

// A 16-bit row is as wide here as a store makes it for the step, and as rounded afterwards.
void CachedTable::train(const StepArgs& args, float* image, const float* grad) const {
  float* vectors = image + spec.dim;
  optimizer.kernel()(args, image, vectors, vectors + optimizer.vector_floats(), grad, spec.dim);
  if (spec.dtype == DType::f32) return;
  thread_local std::vector<uint16_t> stored;
  stored.resize(spec.dim);
  narrow(spec.dtype, image, stored.data(), spec.dim);
  widen(spec.dtype, stored.data(), image, spec.dim);
}

void CachedTables::declared(std::span<const TableSpec> tables) {
  for (const TableSpec& spec : tables) declared_[spec.id] = spec;
}

// What happens to such rows depends on when and how often a store sees gradients of them.
std::string CachedTables::refusal_of(const TableSpec& spec) {
  if (spec.min_count > 1) return "it admits keys by how often they were trained (min_count)";
  if (spec.ttl != 0) return "its rows age (ttl)";
  if (spec.capacity_rows != 0) return "its rows are bounded (capacity_rows)";
  return {};
}

void CachedTables::keep(std::span<const TableId> tables) {
  for (const TableId id : tables) {
    const auto spec = declared_.find(id);
    if (spec == declared_.end())
      throw BadInput("table " + std::to_string(id) + " is to be cached but was never declared");
    if (const std::string why = refusal_of(spec->second); !why.empty())
      throw BadInput("table '" + spec->second.name + "' cannot be cached: " + why);
    if (kept_.size() <= id) kept_.resize(id + size_t{1});
    if (!kept_[id]) kept_[id] = std::make_unique<CachedTable>(spec->second);
  }
}

const CachedTable& CachedTables::known(TableId id) const {
  if (const CachedTable* table = of(id)) return *table;
  throw BadInput("table " + std::to_string(id) + " is not cached");
}

bool CachedTables::any_of(const Routed& routed) const {
  return std::any_of(routed.tables.begin(), routed.tables.end(),
                     [this](TableId table) { return of(table) != nullptr; });
}

std::string CachedTables::name_of(TableId id) const {
  const auto spec = declared_.find(id);
  return spec == declared_.end() ? std::to_string(id) : "'" + spec->second.name + "'";
}

void throw_non_finite(Key key, const CachedTable& table) {
  throw NonFinite("the gradient of key " + std::to_string(key) + " of table '" + table.spec.name +
                  "' holds NaN or infinity; nothing of this push was applied");
}

void RowTraining::add(CachedRow& row, const CachedTable& table, const float* grad, bool unique) {
  const uint32_t dim = table.spec.dim;
  if (!all_finite(grad, dim)) throw_non_finite(row.key(), table);
  if (!unique) {
    const auto [at, fresh] = place_.try_emplace(&row, rows_.size());
    if (!fresh) {
      Row& first = rows_[at->second];
      if (first.summed == nullptr) {
        sums_.emplace_back(first.grad, first.grad + dim);
        first.grad = first.summed = sums_.back().data();
      }
      for (uint32_t k = 0; k < dim; ++k) first.summed[k] += grad[k];
      return;
    }
  }
  rows_.push_back({&row, &table, grad, nullptr});
}

std::vector<StepArgs> RowTraining::prepare(const CachedTables& tables, const PushMeta& meta) const {
  std::vector<StepArgs> args(tables.ids());
  std::vector<uint8_t> named(tables.ids(), 0);
  for (const auto& [id, hyper] : meta.hyper) {
    const CachedTable* table = tables.of(id);
    if (table == nullptr || named[id] != 0) continue;  // of two the first counts, as on a server
    args[id] = table->optimizer.prepare(hyper);
    named[id] = 1;
  }
  for (const Row& one : rows_)
    if (named[one.row->table] == 0)
      throw BadInput("the push holds keys of table '" + one.table->spec.name + "' but no learning rate for it");
  return args;
}

}  // namespace springtide
