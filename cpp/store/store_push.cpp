// Applies gradients. In each stripe, existing rows are updated first, in a pipeline like that of a pull. Keys without a
// row follow in order, because only these keys change the index.
#include "base/hash.h"
#include "store/keys/row_pipeline.h"
#include "store/store.h"

namespace springtide {

PushStats Store::push(std::span<const TableId> tables, std::span<const Key> keys, const float* grads,
                      std::span<const TableHyper> hyper, uint64_t at, bool unique, std::vector<uint16_t>* refused) {
  CallPlan& plan = plan_push(tables, keys, hyper);
  if (unique && plan.seems_ordered(tables, keys) && (plan.alike() || pool_.threads() < 2)) {
    begin_push(at);
    return push_in_order(plan, tables, keys, grads, refused);
  }
  plan.group(tables, keys, const_cast<float*>(grads));
  if (!unique) plan.sum_duplicates();
  begin_push(at);
  PushStats sum;
  std::array<PushStats, kStripes> parts{};
  std::array<std::vector<uint16_t>, kStripes> lefts;
  for_stripes(keys.size(), [&](uint32_t number) {
    GroupedItems source{plan.stripe(number)};
    if (!source.items.empty()) push_stripe(number, source, parts[number], lefts[number]);
  });
  counts.trained(tables, keys);
  for (const PushStats& part : parts) sum += part;
  for (const auto& some : lefts) {
    if (refused != nullptr) refused->insert(refused->end(), some.begin(), some.end());
  }
  return sum;
}

// For keys in slot order. Each thread processes some stripes directly from the caller's arrays. Keys that are out of
// order wait until all other keys are done. The result then does not depend on the number of threads.
PushStats Store::push_in_order(const CallPlan& plan, std::span<const TableId> tables, std::span<const Key> keys,
                               const float* grads, std::vector<uint16_t>* refused) {
  struct Share {
    PushStats stats;
    std::vector<uint16_t> refused;
    std::vector<StreamedItems> late;
  };
  const uint32_t parts = worth_sharing(keys.size()) ? kSharesAThread * pool_.threads() : 1;
  const std::vector<KeyRange> ranges = plan.cut_at_stripes(tables, keys, parts);
  std::vector<Share> shares(ranges.size());
  const auto run = [&](StreamedItems& source, Share& share) {
    plan.alike() ? push_uniform(source, share.stats, share.refused)
                 : push_stripe(source.stripe, source, share.stats, share.refused);
  };
  pool_.run(static_cast<uint32_t>(ranges.size()), [&](uint32_t i) {
    StreamedItems source{tables.data(),
                         keys.data(),
                         ranges[i].first,
                         ranges[i].end,
                         const_cast<float*>(grads) + ranges[i].floats_before,
                         plan.use_by_id()};
    const uint32_t first = i == 0 ? 0 : source.stripe_ahead();
    const uint32_t end = i + 1 == ranges.size() ? kStripes : source.stripe_at(ranges[i].end);
    while (source.at < source.count) {
      source.stripe = source.stripe_ahead();
      if (source.stripe >= first && source.stripe < end) {
        run(source, shares[i]);
      } else {
        shares[i].late.push_back(source.skip_stripe());
      }
    }
  });
  PushStats sum;
  for (Share& share : shares) {
    for (StreamedItems& late : share.late) run(late, share);
    sum += share.stats;
    if (refused != nullptr) refused->insert(refused->end(), share.refused.begin(), share.refused.end());
  }
  counts.trained(tables, keys);
  return sum;
}

CallPlan& Store::plan_push(std::span<const TableId> tables, std::span<const Key> keys,
                           std::span<const TableHyper> hyper) {
  check_process();
  CallPlan& plan = CallPlan::of_this_thread();
  plan.begin();
  for (const TableHyper& values : hyper) {
    Table& named = table(values.table);
    plan.use(values.table, TableUse(named, named.optimizer.kernel(), named.optimizer.prepare(values)));
  }
  plan.name_tables(tables, keys, [this](TableId id) -> TableUse {
    throw BadInput("push to table '", table(id).spec.name, "' without a learning rate: name the table in hyper");
  });
  return plan;
}

void Store::begin_push(uint64_t at) {
  if (clock.nearly_full()) renumber_ticks();
  clock.advance(at);
}

template <class Source>
void Store::push_stripe(uint32_t number, Source& source, PushStats& stats, std::vector<uint16_t>& refused) {
  std::lock_guard hold(stripes_[number].lock);
  if (stripes_[number].closed == 0) return push_rows(number, source, stats);
  push_items(number, open_items(source, refused), stats);
}

template <class Source>
std::span<const Item> Store::open_items(Source& source, std::vector<uint16_t>& refused) {
  thread_local std::vector<Item> mine;
  mine.clear();
  InFlight keys[kGroup];
  while (const size_t n = source.fill(keys)) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t slot = slot_number(keys[i].item.hash);
      if (closed_[slot] == 0) {
        mine.push_back(keys[i].item);
      } else if (refused.empty() || refused.back() != slot) {
        refused.push_back(static_cast<uint16_t>(slot));
      }
    }
  }
  return mine;
}

void Store::push_items(uint32_t number, std::span<const Item> items, PushStats& stats) {
  GroupedItems source{items};
  push_rows(number, source, stats);
}

template <class Source>
void Store::push_rows(uint32_t number, Source& source, PushStats& stats) {
  thread_local std::vector<Item> rest;  // keys without a row
  rest.clear();
  uint32_t tick = clock.tick();
  size_t before = source.at;
  auto locate = [this, tick](InFlight& f, Cell* cell) {
    const TableUse& use = *f.item.use;
    f.weights = nullptr;
    if (!is_row(cell, use)) return;
    RowHandle row = handle_of(cell->meta);
    f.weights = use.weights(row);
    prefetch_lines_to_write(f.weights, use.weight_bytes);
    if (use.vector_bytes != 0) prefetch_lines_to_write(f.vectors = use.vectors(row), use.vector_bytes);
    if (use.number_bytes != 0) prefetch_lines_to_write(f.number = use.number(row), use.number_bytes);
    if (stamp_of(cell->meta) != tick) cell->meta = row_meta(row, tick);
  };
  auto finish = [this](const InFlight& f) {
    const TableUse& use = *f.item.use;
    if (f.weights != nullptr) {
      use.step(f.weights, f.vectors, f.number, f.item.data);
    } else {
      prefetch_read(index_.header_line(*f.slot, f.item.hash));
      rest.push_back(f.item);
    }
  };
  walk(index_, slot_shift_, source, locate, finish);
  size_t items = source.at - before;
  stats.applied += items - rest.size();
  apply_rest(rest, tick, stats);
  if (any_ttl_.load(std::memory_order_relaxed)) sweep(stripes_[number], number, items, stats);
}

void Store::push_uniform(StreamedItems& source, PushStats& stats, std::vector<uint16_t>& refused) {
  const uint32_t number = source.stripe;
  std::lock_guard hold(stripes_[number].lock);
  if (stripes_[number].closed != 0) return push_items(number, open_items(source, refused), stats);
  thread_local std::vector<Item> rest;  // keys without a row
  rest.clear();
  const uint32_t tick = clock.tick();
  const size_t before = source.at;
  const TableUse* const* const uses = source.use_by_id;
  const TableUse& any = *uses[source.tables[before]];
  uint8_t* const base = any.base;
  const uint32_t bytes = any.weight_bytes, dim = any.dim;
  const auto found = [=, tables = source.tables](UniformRow& key, const Cell* at, size_t place) {
    const TableUse& use = *uses[tables[place]];
    auto* cell = const_cast<Cell*>(at);
    const RowHandle row = handle_of(cell->meta);
    key.home = cell;
    key.weights = base + extent_of(row) * kExtentBytes + size_t{row_of(row)} * bytes;
    if (bytes == kLine) {
      prefetch_lines_to_write<kLine>(key.weights, bytes);
    } else {
      prefetch_lines_to_write(key.weights, bytes);
    }
    if (use.vector_bytes != 0) prefetch_lines_to_write(use.vectors(row), use.vector_bytes);
    if (use.number_bytes != 0) prefetch_lines_to_write(use.number(row), use.number_bytes);
    if (stamp_of(cell->meta) != tick) cell->meta = row_meta(row, tick);
  };
  const auto finish = [=, this, tables = source.tables, grads = source.data](const UniformRow& key, size_t place) {
    const TableUse& use = *uses[tables[place]];
    float* const grad = grads + (place - before) * dim;
    if (key.weights != nullptr) [[likely]] {
      float *vectors = nullptr, *number_at = nullptr;
      if ((use.vector_bytes | use.number_bytes) != 0) {
        const RowHandle row = handle_of(key.home->meta);
        vectors = use.vectors(row), number_at = use.number(row);
      }
      use.kernel(use.args, reinterpret_cast<float*>(key.weights), vectors, number_at, grad, dim);
    } else {
      prefetch_read(index_.header_line(index_.slot(slot_number(key.hash)), key.hash));
      rest.push_back(Item{key.hash, &use, grad});
    }
  };
  source.passed(walk_alike(index_, slot_shift_, {source.tables, source.keys}, before, source.count, found, finish),
                dim);
  stats.applied += source.at - before - rest.size();
  apply_rest(rest, tick, stats);
  if (any_ttl_.load(std::memory_order_relaxed)) sweep(stripes_[number], number, source.at - before, stats);
}

void Store::apply_rest(std::span<const Item> rest, uint32_t tick, PushStats& stats) {
  if (rest.empty()) return;
  Reservation room(*this, rest, Reservation::Admission::counted);
  room.use();
  for (const Item& item : rest) apply_one(item, tick, stats);
}

// Applies the gradient of a key that has no row, that waits for admission, or whose ttl has passed.
void Store::apply_one(const Item& item, uint32_t tick, PushStats& stats) noexcept {
  Table& table = *item.use->table;
  uint32_t number = slot_number(item.hash);
  Slot& slot = index_.slot(number);
  Cell* cell = index_.find(slot, item.hash, table.spec.id);
  if (cell != nullptr && expired(cell->meta, table)) {
    if (!is_candidate(cell->meta)) ++stats.evicted;
    drop_reserved(number, cell, table, true);
    cell = nullptr;
  }
  // The cell was created earlier in this push, because the caller violated `unique`.
  if (cell != nullptr && !is_candidate(cell->meta)) {
    update(item, handle_of(cell->meta));
    ++stats.applied;
    return;
  }
  uint32_t count = cell != nullptr ? candidate_count(cell->meta) + 1 : 1;
  if (count < table.spec.min_count) {
    uint64_t meta = candidate_meta(table.spec.id, count, tick);
    if (cell != nullptr) {
      cell->meta = meta;
    } else {
      index_.insert(slot, item.hash, meta);
    }
    ++stats.waiting;
    return;
  }
  if (evict_for_one(table, number, stats)) cell = index_.find(slot, item.hash, table.spec.id);
  const RowHandle row = make_row(table, item.hash, cell, tick);
  table.write_init(row, item.hash);
  update(item, row);
  ++stats.applied;
  ++stats.created;
}

RowHandle Store::make_row(Table& table, uint64_t hash, Cell* cell, uint32_t tick) {
  uint32_t number = slot_number(hash);
  Slot& slot = index_.slot(number);
  RowHandle row = table.rows.take(stripe_number(hash));
  if (cell != nullptr) {
    cell->meta = row_meta(row, tick);
  } else {
    index_.insert(slot, hash, row_meta(row, tick));
  }
  ++slot.rows;
  slot.row_bytes += table.bytes();
  if (table.share != 0) ++table.quotas[number].rows;
  table.count.fetch_add(1, std::memory_order_relaxed);
  return row;
}

void Store::update(const Item& item, RowHandle row) {
  item.use->step(item.use->weights(row), item.use->vectors(row), item.use->number(row), item.data);
}

void Store::assign(std::span<const TableId> tables, std::span<const Key> keys, const float* rows,
                   std::vector<uint16_t>* refused, bool keep) {
  check_process();
  CallPlan& plan = CallPlan::of_this_thread();
  plan.begin();
  plan.name_tables(tables, keys, [this](TableId id) {
    if (is_count(id)) throw BadInput("update counts of rows cannot be assigned, only pulled");
    return use_of(id);
  });
  plan.group(tables, keys, const_cast<float*>(rows));
  std::array<std::vector<uint16_t>, kStripes> lefts;
  for_stripes(keys.size(), [&](uint32_t number) {
    GroupedItems source{plan.stripe(number)};
    if (source.items.empty()) return;
    std::lock_guard hold(stripes_[number].lock);
    uint32_t tick = clock.tick();
    for (const Item& item : open_items(source, lefts[number])) assign_one(item, tick, keep);
  });
  counts.trained(tables, keys);
  for (const auto& some : lefts) {
    if (refused != nullptr) refused->insert(refused->end(), some.begin(), some.end());
  }
}

void Store::assign_one(const Item& item, uint32_t tick, bool keep) {
  Table& table = *item.use->table;
  uint32_t number = slot_number(item.hash);
  if (keep && identities_of(number).has(first_values_of(table.spec.id)) == IdentitySet::Has::all) return;
  Cell* cell = index_.find(index_.slot(number), item.hash, table.spec.id);
  RowHandle row;
  if (cell != nullptr && !is_candidate(cell->meta)) {
    if (keep) return;
    row = handle_of(cell->meta);
    cell->meta = row_meta(row, tick);
  } else {
    PushStats ignored;
    Reservation room(*this, {&item, 1}, Reservation::Admission::at_once);
    room.use();
    evict_for_one(table, number, ignored);
    row = make_row(table, item.hash, index_.find(index_.slot(number), item.hash, table.spec.id), tick);
  }
  item.use->image ? table.write_image(row, item.data) : table.write(row, item.data);
}

}  // namespace springtide
