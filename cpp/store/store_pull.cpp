// Reads rows: row_pipeline.h finds them, and this file copies them to the caller. A read changes nothing except request
// counts.
#include <bit>

#include "base/hash.h"
#include "store/keys/row_pipeline.h"
#include "store/store.h"

namespace springtide {
constexpr size_t kReadyKeys = 1024;  // keys per share, in a call with `ready`

void Store::pull(std::span<const TableId> tables, std::span<const Key> keys, float* out, std::vector<uint16_t>* refused,
                 bool helped, const std::function<void(size_t)>& ready) {
  std::mutex noting;
  std::vector<uint16_t> noted;
  const auto note = [&](uint64_t hash) {  // call this under the stripe's lock
    const uint32_t slot = slot_number(hash);
    if (closed_[slot] == 0) return;
    const std::lock_guard hold(noting);
    noted.push_back(static_cast<uint16_t>(slot));
  };
  const auto tell = [&](size_t first_keys) {
    if (refused != nullptr) {
      const std::lock_guard hold(noting);
      refused->insert(refused->end(), noted.begin(), noted.end());
      noted.clear();
    }
    if (ready) ready(first_keys);
  };
  check_process();
  CallPlan& plan = CallPlan::of_this_thread();
  plan.begin();
  plan.name_tables(tables, keys, [this](TableId id) { return use_of(id); });
  if (plan.seems_ordered(tables, keys)) {
    helped = helped && worth_sharing(keys.size());
    const size_t shares = ready    ? (keys.size() + kReadyKeys - 1) / kReadyKeys
                          : helped ? size_t{kSharesAThread} * pool_.threads()
                                   : 1;
    const std::vector<KeyRange> ranges = plan.cut(tables, keys, static_cast<uint32_t>(shares));
    const auto work = [&](uint32_t i) {
      const KeyRange& range = ranges[i];
      StreamedItems source{tables.data(),   keys.data(), range.first, range.end, out + range.floats_before,
                           plan.use_by_id()};
      while (source.at < source.count) {
        source.stripe = source.stripe_ahead();
        Stripe& stripe = stripes_[source.stripe];
        std::lock_guard hold(stripe.lock);
        const size_t before = source.at;
        plan.alike() ? pull_uniform(source) : pull_rows(source);
        if (stripe.closed == 0 || refused == nullptr) continue;
        for (size_t k = before; k < source.at; ++k) note(hash_key(tables[k], keys[k]));
      }
    };
    const auto count = static_cast<uint32_t>(ranges.size());
    if (ready) {
      return pool_.run_in_order(count, helped, work, [&](uint32_t done) { tell(ranges[done - 1].end); });
    }
    pool_.run(count, work);
    return tell(keys.size());
  }
  plan.group(tables, keys, out);
  for_stripes(helped ? keys.size() : 0, [&](uint32_t number) {
    GroupedItems source{plan.stripe(number)};
    if (source.items.empty()) return;
    std::lock_guard hold(stripes_[number].lock);
    pull_rows(source);
    if (stripes_[number].closed == 0 || refused == nullptr) return;
    for (const Item& item : plan.stripe(number)) note(item.hash);
  });
  tell(keys.size());
}

void Store::pull_uniform(StreamedItems& source) {
  by_dim(source.use_by_id[source.tables[source.at]]->dim, [&](auto dim) { pull_uniform_of<dim()>(source); });
}

// `kDim` is the dim of all rows; 0 means any dim.
template <uint32_t kDim>
void Store::pull_uniform_of(StreamedItems& source) {
  const TableUse& any = *source.use_by_id[source.tables[source.at]];
  const uint32_t dim = kDim != 0 ? kDim : any.dim;
  const size_t bytes = dim * sizeof(float);
  uint8_t* const base = any.base;
  const auto found = [=](UniformRow& key, const Cell* cell, size_t) {
    key.weights = base + extent_of(cell->meta) * kExtentBytes + row_of(cell->meta) * bytes;
    prefetch_lines<kDim * sizeof(float)>(key.weights, bytes);
  };
  const auto finish = [=, &source, out = source.data, first = source.at](const UniformRow& key, size_t place) {
    float* const to = out + (place - first) * dim;
    if (key.weights != nullptr) [[likely]] {
      copy_floats<kDim>(key.weights, to, dim);
    } else {
      source.use_by_id[source.tables[place]]->table->read_init(key.hash, to);
    }
  };
  source.passed(walk_alike(index_, slot_shift_, {source.tables, source.keys}, source.at, source.count, found, finish),
                dim);
}

template <class Source>
void Store::pull_rows(Source& source) {
  auto locate = [this](InFlight& f, const Cell* cell) {
    const TableUse& use = *f.item.use;
    f.weights = nullptr;
    if (is_row(cell, use) && !use.count) {
      const RowHandle row = handle_of(cell->meta);
      f.weights = use.weights(row);
      prefetch_lines(f.weights, use.weight_bytes);
      if (use.image) f.vectors = use.vectors(row), f.number = use.number(row);
    }
  };
  auto finish = [this](const InFlight& f) {
    const TableUse& use = *f.item.use;
    if (f.weights == nullptr) {
      use.count   ? static_cast<void>(*f.item.data = std::bit_cast<float>(counts.of(f.item.hash)))
      : use.image ? use.table->read_init_image(f.item.hash, f.item.data)
                  : use.table->read_init(f.item.hash, f.item.data);
    } else if (use.plain) [[likely]] {
      copy_floats(f.weights, f.item.data, use.dim);
    } else if (use.image) {
      use.table->read_image(f.weights, f.vectors, f.number, f.item.data);
    } else {
      widen(use.dtype, f.weights, f.item.data, use.dim);
    }
  };
  walk(index_, slot_shift_, source, locate, finish);
}

}  // namespace springtide
