// The pulls and pushes of a cache. The functions are a part of CachedBackend.
#include <algorithm>
#include <tuple>
#include <utility>

#include "cache/cached_backend.h"

namespace springtide {

// A push that keeps the memory of its rows until it is done.
class CachedPush final : public Pending {
 public:
  CachedPush(std::vector<std::unique_ptr<RowSelection>> kept, std::unique_ptr<Pending> inner)
      : kept_(std::move(kept)), inner_(std::move(inner)) {}
  void wait() override { inner_->wait(); }
  bool done() override { return inner_->done(); }

 private:
  std::vector<std::unique_ptr<RowSelection>> kept_;
  std::unique_ptr<Pending> inner_;  // declared last, so that it is destroyed first
};

// A pull in flight. When its rows arrive, they are copied to the caller, and images are also copied to the cache.
struct PullInFlight {
  explicit PullInFlight(CachedBackend& to) : backend(to) {}

  void wait() {
    const std::lock_guard once(waiting);
    if (home) return;
    inner->wait();
    for (const auto& rows : values) rows->copy_home();
    const std::lock_guard lock(backend.mutex_);
    for (const auto& rows : images) {
      if (life == backend.life_) backend.enter(*rows);
      for (size_t i = 0; i < rows->size(); ++i) {
        const uint32_t dim = backend.tables_.known(table_of(rows->routed().tables[i])).spec.dim;
        std::copy_n(rows->row(i), dim, rows->home(i));
      }
    }
    home = true;
  }

  CachedBackend& backend;
  uint64_t life = 0;
  std::mutex waiting;
  bool home = false;
  std::vector<std::unique_ptr<RowSelection>> values, images;
  std::unique_ptr<Pending> inner;  // declared last, so that it is destroyed first
};

namespace {

class CachedPull final : public Pending {
 public:
  explicit CachedPull(std::shared_ptr<PullInFlight> pull) : pull_(std::move(pull)) {}
  void wait() override { pull_->wait(); }
  bool done() override { return pull_->inner->done(); }
  void lower_seen(std::span<uint64_t> by_server) const override { pull_->inner->lower_seen(by_server); }

 private:
  std::shared_ptr<PullInFlight> pull_;
};

}  // namespace

std::unique_ptr<Pending> CachedBackend::pull(std::span<const Part> parts, const PullMeta& meta) {
  auto pulling = std::make_shared<PullInFlight>(*this);
  std::vector<Part> rest;
  {
    const std::lock_guard lock(mutex_);
    pulling->life = life_;
    Planned* planned = plan_of(meta.after_step + 1);
    if (planned != nullptr) {
      if (plans_.begin()->first <= meta.after_step)
        throw BadInput("rows of step ", meta.after_step + 1, " are asked for before step ", plans_.begin()->first,
                       " is pushed");
      begin(*planned);
    }
    for (const Part& part : parts) {
      if (!tables_.any_of(*part.routed)) {
        rest.push_back(part);
        continue;
      }
      auto values = selection(part.routed->version), images = selection(part.routed->version);
      split_pull(part, planned, *values, *images);
      count_.bytes_pulled += values->wire_bytes() + images->wire_bytes();
      if (values->size() == part.routed->keys.size()) {
        rest.push_back(part);
        continue;
      }
      if (values->size() != 0) rest.push_back(pulling->values.emplace_back(std::move(values))->part());
      if (images->size() != 0) rest.push_back(pulling->images.emplace_back(std::move(images))->part());
    }
  }
  pulling->inner = inner_->pull(rest, meta);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(under_way_, [](const auto& one) { return one.expired(); });
    under_way_.push_back(pulling);
  }
  return std::make_unique<CachedPull>(std::move(pulling));
}

void CachedBackend::split_pull(const Part& part, const Planned* planned, RowSelection& values, RowSelection& images) {
  const Routed& routed = *part.routed;
  const auto look_at = [&](uint32_t r) {
    const TableId id = routed.tables[r];
    const Key key = routed.keys[r];
    const uint32_t floats = routed.row_offset[r + 1] - routed.row_offset[r];
    float* home = part.rows + routed.row_offset[r];
    const CachedTable* table = tables_.of(id);
    if (table == nullptr) return values.add(id, key, floats, home);
    const PlannedUse use = planned == nullptr ? PlannedUse::none : planned->index.of(id, key);
    if (use == PlannedUse::none && !on_servers_)
      refuse("is read outside the plan of a step, while rows may be in workers' caches only; flush first", id, key);
    CachedRow* row = use == PlannedUse::value       ? borrowed_.find(id, key)
                     : use == PlannedUse::hold_pull ? rows_.find(id, key)
                     : use == PlannedUse::hold      ? &row_of("hold", id, key)
                     : use == PlannedUse::pass_hit  ? &row_of("pass_hit", id, key)
                                                    : nullptr;
    if (use == PlannedUse::value && row == nullptr) refuse("has not arrived from the rank that keeps the row", id, key);
    if (row != nullptr) {
      std::copy_n(row->image, floats, home);
      if (use != PlannedUse::value) ++count_.hits;
    } else if (use == PlannedUse::hold_pull) {
      images.add(id | kImage, key, table->image_floats(), home);
      ++count_.pulled_images;
    } else {
      values.add(id, key, floats, home);
      ++count_.pulled_values;
    }
  };
  routed.for_each(look_at, [&] {
    values.end_server();
    images.end_server();
  });
}

void CachedBackend::enter(const RowSelection& images) {
  for (size_t i = 0; i < images.size(); ++i) {
    const TableId table = table_of(images.routed().tables[i]);
    const Key key = images.routed().keys[i];
    if (rows_.find(table, key) != nullptr) continue;  // two requests of one step pulled the row
    CachedRow& row = rows_.insert(table, key, tables_.known(table).image_floats());
    std::copy_n(images.row(i), row.floats, row.image);
  }
}

std::unique_ptr<Pending> CachedBackend::push(std::span<const Part> parts, const PushMeta& meta) {
  for (const auto& one : [&] {
         const std::lock_guard lock(mutex_);
         return std::exchange(under_way_, {});
       }()) {
    if (const auto pulling = one.lock()) pulling->wait();  // this push needs rows of the table
  }
  std::vector<std::unique_ptr<RowSelection>> kept;
  std::vector<Part> rest;
  {
    const std::lock_guard lock(mutex_);
    Planned* planned = meta.bsp ? plan_of(meta.step) : nullptr;
    if (planned != nullptr && meta.step <= pushed_)
      throw BadInput("step ", meta.step, " was trained in the cache already; clear it to go back");
    RowTraining training;
    const bool exchanged = planned != nullptr && !planned->plan.gradient_receives.empty();
    if (exchanged) add_received(*planned, true, training);
    for (const Part& part : parts) {
      if (!tables_.any_of(*part.routed)) {
        rest.push_back(part);
        continue;
      }
      auto grads = selection(part.routed->version);
      split_push(part, planned, meta.unique && !exchanged, *grads, training);
      count_.pushed_gradients += grads->size();
      count_.bytes_pushed += grads->wire_bytes();
      if (grads->size() == part.routed->keys.size()) {
        rest.push_back(part);
      } else if (grads->size() != 0) {
        rest.push_back(kept.emplace_back(std::move(grads))->part());
        kept.back()->copy_in();
      }
    }
    if (exchanged) add_received(*planned, false, training);
    training.apply(tables_, meta, [&](CachedRow& row) {
      row.version = meta.step;
      rows_.set_dirty(row, true);
    });
    count_.trained_rows += training.size();
    if (planned != nullptr) {
      for (size_t i = 0; i < planned->plan.pass_hit.size(); ++i)  // these rows are stale from now on
        leave(row_of("pass_hit", planned->plan.pass_hit.tables[i], planned->plan.pass_hit.keys[i]));
      for (const PeerRows& from : planned->plan.value_receives)
        for (size_t i = 0; i < from.rows.size(); ++i)
          if (CachedRow* guest = borrowed_.find(from.rows.tables[i], from.rows.keys[i])) borrowed_.erase(*guest);
      pushed_ = meta.step;
      plans_.erase(plans_.begin(), plans_.upper_bound(meta.step));
    }
    if (meta.bsp) {
      Planned* next = plan_of(meta.step + 1);
      const bool flush = std::exchange(flush_next_, false) || next == nullptr;
      auto images = write_back(flush ? nullptr : next);
      if (images->size() != 0) {
        rest.push_back(kept.emplace_back(std::move(images))->part());
        kept.back()->copy_in();
      }
      if (next != nullptr) begin(*next);
      on_servers_ = flush || (on_servers_ && planned == nullptr);  // without a plan, no rank has kept rows
      if (flush) ++count_.flushes;
    }
  }
  return std::make_unique<CachedPush>(std::move(kept), inner_->push(rest, meta));
}

void CachedBackend::split_push(const Part& part, const Planned* planned, bool unique, RowSelection& grads,
                               RowTraining& training) const {
  const Routed& routed = *part.routed;
  const auto look_at = [&](uint32_t r) {
    const TableId id = routed.tables[r];
    const Key key = routed.keys[r];
    const uint32_t floats = routed.row_offset[r + 1] - routed.row_offset[r];
    float* grad = part.rows + routed.row_offset[r];
    const CachedTable* table = tables_.of(id);
    if (table == nullptr) return grads.add(id, key, floats, grad);
    const PlannedUse use = planned == nullptr ? PlannedUse::none : planned->index.of(id, key);
    if (use == PlannedUse::none && (planned != nullptr || !on_servers_ || rows_.rows() != 0))
      refuse("is trained in a step whose plan omits it; flush and clear the cache first", id, key);
    // The rank that keeps the row has the gradient.
    if (use != PlannedUse::none && planned->index.given(id, key)) return;
    if (use != PlannedUse::hold && use != PlannedUse::hold_pull) return grads.add(id, key, floats, grad);
    training.add(row_of("hold", id, key), *table, grad, unique);
  };
  routed.for_each(look_at, [&] { grads.end_server(); });
}

std::unique_ptr<RowSelection> CachedBackend::write_back(const Planned* next) {
  std::vector<CachedRow*> rows;
  if (next == nullptr) {
    rows_.for_each([&](CachedRow& row) { rows.push_back(&row); });
  } else {
    const PlanKeys& keys = next->plan.write_back;
    for (size_t i = 0; i < keys.size(); ++i) rows.push_back(&row_of("write_back", keys.tables[i], keys.keys[i]));
  }
  std::erase_if(rows, [](const CachedRow* row) { return !row->dirty; });
  const auto placement = inner_->placement();
  const auto slots = static_cast<uint32_t>(placement->server_of_slot.size());
  // (server, hash, row); the first bits of the hash are the slot
  std::vector<std::tuple<uint16_t, uint64_t, CachedRow*>> order;
  for (CachedRow* row : rows) order.emplace_back(placement->server_of_slot[slot_of(row->hash, slots)], row->hash, row);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tuple(std::get<0>(a), std::get<1>(a), std::get<2>(a)->table) <
           std::tuple(std::get<0>(b), std::get<1>(b), std::get<2>(b)->table);
  });
  auto images = selection(placement->version);
  size_t at = 0;
  for (uint16_t server = 0; server < placement->servers; ++server) {
    for (; at < order.size() && std::get<0>(order[at]) == server; ++at) {
      CachedRow& row = *std::get<2>(order[at]);
      images->add(row.table | kImage, row.key(), row.floats, row.image);
      rows_.set_dirty(row, false);
    }
    images->end_server();
  }
  count_.pushed_images += images->size();
  count_.bytes_pushed += images->wire_bytes();
  return images;
}

void CachedBackend::assign(std::span<const Part> parts, bool keep) {
  {
    const std::lock_guard lock(mutex_);
    for (const Part& part : parts)
      if (rows_.rows() != 0 && tables_.any_of(*part.routed))
        throw BadInput(
            "rows of a cached table are assigned while the cache holds rows; flush and clear the cache first");
  }
  inner_->assign(parts, keep);
}

void CachedBackend::scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) {
  {
    const std::lock_guard lock(mutex_);
    if (tables_.of(table) != nullptr && !on_servers_)
      throw BadInput("table '", tables_.of(table)->spec.name,
                     "' is read while rows may be in workers' caches only; flush first");
  }
  inner_->scan(table, keys, rows);
}

}  // namespace springtide
