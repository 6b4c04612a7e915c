// Pushes that name their batches. Every stripe is visited once, even if it has no keys. A stripe skips batches that its
// slots have applied. The stripe records and applies the other batches under one lock: all of them or, if memory is
// short, none.
#include <algorithm>

#include "base/hash.h"
#include "base/vector_reserve.h"
#include "store/keys/row_pipeline.h"
#include "store/store.h"

namespace springtide {

namespace {

void check_rows(const PushRows& rows, const PushIdentity& identity, uint32_t slots) {
  size_t keys = 0;
  for (const RowRun& run : rows.runs) keys += run.keys;
  throw_if<BadInput>(keys != rows.keys.size(), "push: gradients of ", keys, " keys came with ", rows.keys.size(),
                     " keys");
  throw_if<BadInput>(!identity.covers.empty() && identity.covers.size() != slots, "push: its slot mask has ",
                     identity.covers.size(), " slots, but there are ", slots);
}

void add_to(OnceStats& sum, const OnceStats& part) {
  sum += part;
  sum.had_keys += part.had_keys;
  sum.foreign_keys += part.foreign_keys;
  sum.foreign.insert(sum.foreign.end(), part.foreign.begin(), part.foreign.end());
  sum.torn.insert(sum.torn.end(), part.torn.begin(), part.torn.end());
}

// Counts the push even if it fails. If memory is short for one stripe, other stripes have already applied it.
struct CountAtEnd {
  ~CountAtEnd() { counts.trained(rows.tables, rows.keys); }
  RowCounts& counts;
  const PushRows& rows;
};

// Reuses its memory from call to call.
std::vector<GroupedKeys>& runs_of_this_thread() {
  thread_local std::vector<GroupedKeys> runs;
  return runs;
}

}  // namespace

std::string describe_torn(const Store& store, std::span<const BatchRange> batches, std::span<const uint16_t> torn) {
  const uint32_t slot = torn.front();
  const IdentitySet have = store.applied(slot);
  std::string which;
  for (const BatchRange& batch : batches) {
    if (batch.count == 0) continue;
    const SampleSpan span{batch.shard, batch.first, batch.first + batch.count};
    const IdentitySet::Has has = have.has(span);
    if (has == IdentitySet::Has::some) {
      return "slot " + std::to_string(slot) + " has applied a part of " + name_of(span) +
             ": all workers must cut a shard into the same batches; nothing of this push was applied to " +
             std::to_string(torn.size()) + " slots";
    }
    if (has == IdentitySet::Has::all) which += (which.empty() ? "" : ", ") + name_of(span);
  }
  return "slot " + std::to_string(slot) + " has applied " + which + " of the " + std::to_string(batches.size()) +
         " batches of this push, but not the others: gradients summed over several batches cannot be split, so nothing "
         "was applied to " +
         std::to_string(torn.size()) + " slots. Accumulate over the same batches whenever they are trained again";
}

OnceStats Store::push_once(const PushRows& rows, std::span<const TableHyper> hyper, uint64_t at, bool unique,
                           const PushIdentity& identity) {
  check_rows(rows, identity, options.slots);
  const std::vector<SampleSpan> spans = spans_of(identity.batches);
  CallPlan& plan = plan_push(rows.tables, rows.keys, hyper);
  std::vector<GroupedKeys>& runs = runs_of_this_thread();
  if (unique) {
    if (runs.size() < rows.runs.size()) runs.resize(rows.runs.size());
    size_t first = 0;
    for (size_t r = 0; r < rows.runs.size(); ++r) {
      const size_t keys = rows.runs[r].keys;
      runs[r].fill(rows.tables.subspan(first, keys), rows.keys.subspan(first, keys), rows.runs.subspan(r, 1),
                   plan.use_by_id());
      first += keys;
    }
  } else {
    plan.group(rows.tables, rows.keys, rows.runs);
    plan.sum_duplicates();
  }
  begin_push(at);
  const CountAtEnd count{counts, rows};
  const size_t pieces = unique ? rows.runs.size() : 1;
  std::array<OnceStats, kStripes> parts{};
  for_stripes(rows.keys.size(), [&](uint32_t number) {
    const auto piece = [&](size_t p) { return unique ? runs[p].stripe(number) : plan.stripe(number); };
    push_stripe_once(number, pieces, piece, spans, identity.covers, parts[number]);
  });
  OnceStats sum;
  for (const OnceStats& part : parts) add_to(sum, part);
  return sum;
}

// A row to be updated.
struct RowUpdate {
  const TableUse* use;
  const float* grad;
  RowHandle row;
};

constexpr size_t kNear = 256;  // if there are more rows, the first have left the L1 cache when the last are found
constexpr size_t kAhead = 6;   // distance of the second prefetch, if there are that many rows

// What a push will do in one stripe. The plan is made before anything changes.
struct Store::OnceWork {
  static OnceWork& of_this_thread() {
    thread_local OnceWork mine;
    mine.items = 0;
    mine.updates.clear();
    mine.rest.clear();
    return mine;
  }
  Verdict verdict(uint32_t slot) const { return verdicts[verdicts.size() == 1 ? 0 : slot]; }

  std::vector<Verdict> verdicts;  // one verdict for each slot of the stripe, or one for all
  std::vector<uint8_t> open;
  std::vector<Item> mine;
  std::vector<RowUpdate> updates;
  std::vector<Item> rest;  // keys without a row
  size_t items = 0;
  uint32_t tick = 0;
};

// All operations that can fail come first. A batch that is recorded but not applied would be lost. A batch that is
// applied but not recorded would be trained twice.
void Store::push_stripe_once(uint32_t number, size_t pieces, const Pieces& piece, std::span<const SampleSpan> spans,
                             std::span<const uint8_t> covers, OnceStats& stats) {
  OnceWork& work = OnceWork::of_this_thread();
  Stripe& stripe = stripes_[number];
  std::lock_guard hold(stripe.lock);
  work.tick = clock.tick();
  stripe.identities.judge(spans, covered_and_open(number, covers, work, stats), work.verdicts);
  const bool alike = work.verdicts.size() == 1 && work.verdicts[0] == Verdict::apply;
  for (size_t p = 0; p < pieces; ++p) {
    alike ? find_rows(piece(p), work) : sort_out(number, piece(p), work, stats);
  }
  if (!alike) note_refused(number, work, stats);
  {
    Reservation room(*this, work.rest, Reservation::Admission::counted);
    stripe.identities.reserve_more(spans, work.verdicts);
    room.use();
    stripe.identities.record(spans, work.verdicts);
    apply(work, stats);
  }
  if (work.items != 0 && any_ttl_.load(std::memory_order_relaxed)) sweep(stripe, number, work.items, stats);
}

void Store::note_refused(uint32_t number, const OnceWork& work, OnceStats& stats) {
  for (uint32_t slot = 0; slot < slots_a_stripe(); ++slot) {
    if (work.verdict(slot) == Verdict::torn)
      stats.torn.push_back(static_cast<uint16_t>(number * slots_a_stripe() + slot));
  }
  std::sort(stats.foreign.begin(), stats.foreign.end());
  stats.foreign.erase(std::unique(stats.foreign.begin(), stats.foreign.end()), stats.foreign.end());
}

// Returns which slots of the stripe the push covers and may change. Covered slots that are now closed are reported,
// even if the push has no keys of them.
std::span<const uint8_t> Store::covered_and_open(uint32_t number, std::span<const uint8_t> covers, OnceWork& work,
                                                 OnceStats& stats) {
  const uint32_t slots = slots_a_stripe(), first = number * slots;
  const auto spoken = covers.empty() ? covers : covers.subspan(first, slots);
  if (stripes_[number].closed == 0) return spoken;
  work.open.assign(slots, 1);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (!spoken.empty()) work.open[slot] = spoken[slot];
    if (closed_[first + slot] == 0 || work.open[slot] == 0) continue;
    work.open[slot] = 0;
    stats.foreign.push_back(static_cast<uint16_t>(first + slot));
  }
  return work.open;
}

void Store::sort_out(uint32_t number, std::span<const Item> items, OnceWork& work, OnceStats& stats) {
  work.mine.clear();
  for (const Item& item : items) {
    const uint32_t slot = slot_number(item.hash);
    switch (work.verdict(slot - number * slots_a_stripe())) {
      case Verdict::apply:
        work.mine.push_back(item);
        break;
      case Verdict::had:
        ++stats.had_keys;
        break;
      case Verdict::foreign:
        ++stats.foreign_keys;
        stats.foreign.push_back(static_cast<uint16_t>(slot));
        break;
      case Verdict::torn:
        break;
    }
  }
  find_rows(work.mine, work);
}

// Prefetches the rows that apply() updates, and stamps them now, because cells move when the index grows for other
// keys.
void Store::find_rows(std::span<const Item> items, OnceWork& work) {
  springtide::reserve_more(work.updates, items.size());
  springtide::reserve_more(work.rest, items.size());
  uint32_t widest = 0;  // longest 16-bit row
  work.items += items.size();
  auto locate = [this, &work, &widest, tick = work.tick](InFlight& f, Cell* cell) {
    const TableUse& use = *f.item.use;
    f.weights = nullptr;
    if (!is_row(cell, use)) return;
    const RowHandle row = handle_of(cell->meta);
    f.weights = use.weights(row);
    work.updates.push_back({&use, f.item.data, row});
    if (use.dtype != DType::f32) widest = std::max(widest, use.dim);
    prefetch_lines_to_write(f.weights, use.weight_bytes);
    if (use.vector_bytes != 0) prefetch_lines_to_write(use.vectors(row), use.vector_bytes);
    if (use.number_bytes != 0) prefetch_lines_to_write(use.number(row), use.number_bytes);
    if (stamp_of(cell->meta) != tick) cell->meta = row_meta(row, tick);
  };
  auto finish = [this, &work](const InFlight& f) {
    if (f.weights != nullptr) return;
    prefetch_read(index_.header_line(*f.slot, f.item.hash));
    work.rest.push_back(f.item);
  };
  GroupedItems source{items};
  walk(index_, slot_shift_, source, locate, finish);
  if (widest != 0) half_row(widest);
}

void Store::apply(OnceWork& work, PushStats& stats) noexcept {
  const size_t count = work.updates.size(), ahead = count > kNear ? kAhead : count;
  for (size_t i = 0; i < count; ++i) {
    const RowUpdate& update = work.updates[i];
    const TableUse& use = *update.use;
    if (i + ahead < count) {
      const RowUpdate& next = work.updates[i + ahead];
      prefetch_lines_to_write(next.use->weights(next.row), next.use->weight_bytes);
      prefetch_read(next.grad);
    }
    use.step(use.weights(update.row), use.vectors(update.row), use.number(update.row), update.grad);
  }
  stats.applied += work.updates.size();
  for (const Item& item : work.rest) apply_one(item, work.tick, stats);
}

IdentitySet Store::applied(uint32_t slot) const {
  check_slot(slot);
  std::lock_guard hold(stripe_of_slot(slot).lock);
  return identities_of(slot);
}

IdentityStats Store::identity_stats() const {
  IdentityStats sum;
  for (Stripe& stripe : stripes_) {
    std::lock_guard hold(stripe.lock);
    sum.sets += stripe.identities.sets();
    sum.bytes += stripe.identities.bytes();
    sum.runs += stripe.identities.runs();
  }
  return sum;
}

}  // namespace springtide
