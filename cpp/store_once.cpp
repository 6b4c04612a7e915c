// Pushes that name their batches: every stripe is visited once, keys or not; what its slots have already is
// skipped, the rest is recorded and applied under the same lock. In: a push. Out: what became of it by slot.
#include <algorithm>
#include <string>

#include "grouped_run.h"
#include "hash.h"
#include "store_impl.h"

namespace springtide {

namespace {

void check_rows(const PushRows& rows, const PushIdentity& identity, uint32_t slots) {
  size_t keys = 0;
  for (const RowRun& run : rows.runs) keys += run.keys;
  if (keys != rows.keys.size()) {
    throw BadInput("push: gradients of " + std::to_string(keys) + " keys came with " +
                   std::to_string(rows.keys.size()) + " keys");
  }
  if (!identity.speaks_for.empty() && identity.speaks_for.size() != slots) {
    throw BadInput("push: it speaks for some of " + std::to_string(identity.speaks_for.size()) +
                   " slots, but there are " + std::to_string(slots));
  }
}

void add_to(OnceStats& sum, const OnceStats& part) {
  sum.applied += part.applied;
  sum.created += part.created;
  sum.waiting += part.waiting;
  sum.evicted += part.evicted;
  sum.had_keys += part.had_keys;
  sum.foreign_keys += part.foreign_keys;
  sum.foreign.insert(sum.foreign.end(), part.foreign.begin(), part.foreign.end());
  sum.torn.insert(sum.torn.end(), part.torn.begin(), part.torn.end());
}

// Memory is kept from call to call.
std::vector<GroupedRun>& runs_of_this_thread() {
  thread_local std::vector<GroupedRun> runs;
  return runs;
}

}  // namespace

std::string describe_torn(const Store& store, std::span<const BatchRange> batches,
                          std::span<const uint16_t> torn) {
  const uint32_t slot = torn.front();
  const IdentitySet have = store.applied(slot);
  std::string which;
  for (const BatchRange& batch : batches) {
    if (batch.count == 0) continue;
    const SampleSpan span{batch.shard, batch.epoch, batch.first, batch.first + batch.count};
    const IdentitySet::Has has = have.has(span);
    if (has == IdentitySet::Has::some) {
      return "slot " + std::to_string(slot) + " has applied a part of " + name_of(span) +
             ": batches of a shard must lie on one grid, whoever trains them; nothing of this push was "
             "applied to " +
             std::to_string(torn.size()) + " slots";
    }
    if (has == IdentitySet::Has::all) which += (which.empty() ? "" : ", ") + name_of(span);
  }
  return "slot " + std::to_string(slot) + " has applied " + which + " of the " +
         std::to_string(batches.size()) +
         " batches of this push, not the others: gradients summed over several batches cannot be split, so "
         "nothing was applied to " +
         std::to_string(torn.size()) +
         " slots. Accumulate over the same batches whenever they are trained again";
}

OnceStats StoreImpl::push_once(const PushRows& rows, std::span<const TableId> hyper_tables,
                               std::span<const Hyper> hyper, uint64_t at, bool unique,
                               const PushIdentity& identity) {
  check_rows(rows, identity, options.slots);
  const std::vector<SampleSpan> spans = spans_of(identity.batches);
  CallPlan& plan = plan_push(rows.tables, rows.keys, hyper_tables, hyper);
  std::vector<GroupedRun>& runs = runs_of_this_thread();
  if (unique) {
    if (runs.size() < rows.runs.size()) runs.resize(rows.runs.size());
    size_t first = 0;
    for (size_t r = 0; r < rows.runs.size(); ++r) {
      const size_t keys = rows.runs[r].keys;
      runs[r].fill(rows.tables.subspan(first, keys), rows.keys.subspan(first, keys),
                   const_cast<float*>(rows.runs[r].floats), plan.use_by_id());
      first += keys;
    }
  } else {
    std::vector<CallPlan::DataRun> data;
    for (const RowRun& run : rows.runs) data.push_back({run.keys, const_cast<float*>(run.floats)});
    plan.group(rows.tables, rows.keys, data);
    plan.sum_duplicates();
  }
  begin_push(at);
  const size_t pieces = unique ? rows.runs.size() : 1;
  std::array<OnceStats, kStripes> parts{};
  for_stripes(rows.keys.size(), [&](uint32_t number) {
    const auto piece = [&](size_t p) { return unique ? runs[p].stripe(number) : plan.stripe(number); };
    push_stripe_once(number, pieces, piece, spans, identity.speaks_for, parts[number]);
  });
  counts.trained(rows.tables, rows.keys);
  OnceStats sum;
  for (const OnceStats& part : parts) add_to(sum, part);
  return sum;
}

void StoreImpl::push_stripe_once(uint32_t number, size_t pieces,
                                 const std::function<std::span<const Item>(size_t)>& piece,
                                 std::span<const SampleSpan> spans, std::span<const uint8_t> speaks_for,
                                 OnceStats& stats) {
  thread_local std::vector<Verdict> verdicts;
  thread_local std::vector<Item> mine;
  thread_local std::vector<uint8_t> open;
  const uint32_t slots = slots_a_stripe(), first = number * slots;
  Stripe& stripe = stripes_[number];
  std::lock_guard hold(stripe.lock);
  auto spoken = speaks_for.empty() ? speaks_for : speaks_for.subspan(first, slots);
  if (stripe.closed != 0) {  // these are another's by now: the sender is told, keys or not
    open.assign(slots, 1);
    for (uint32_t slot = 0; slot < slots; ++slot) {
      if (!spoken.empty()) open[slot] = spoken[slot];
      if (closed_[first + slot] == 0 || open[slot] == 0) continue;
      open[slot] = 0;
      stats.foreign.push_back(static_cast<uint16_t>(first + slot));
    }
    spoken = open;
  }
  const bool alike = stripe.identities.admit(spans, spoken, verdicts);
  if (alike && verdicts[0] == Verdict::apply) {
    for (size_t p = 0; p < pieces; ++p)
      if (const auto items = piece(p); !items.empty()) push_items(number, items, stats);
    return;
  }
  if (alike) verdicts.resize(slots, verdicts[0]);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (verdicts[slot] == Verdict::torn) stats.torn.push_back(static_cast<uint16_t>(first + slot));
  }
  for (size_t p = 0; p < pieces; ++p) {
    mine.clear();
    for (const Item& item : piece(p)) {
      const uint32_t slot = slot_number(item.hash);
      switch (verdicts[slot - first]) {
        case Verdict::apply:
          mine.push_back(item);
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
    if (!mine.empty()) push_items(number, mine, stats);
  }
  std::sort(stats.foreign.begin(), stats.foreign.end());
  stats.foreign.erase(std::unique(stats.foreign.begin(), stats.foreign.end()), stats.foreign.end());
}

void StoreImpl::forget(std::span<const uint32_t> shards) {
  check_process();
  for (Stripe& stripe : stripes_) {
    std::lock_guard hold(stripe.lock);
    stripe.identities.finish(shards);
  }
}

IdentitySet StoreImpl::applied(uint32_t slot) {
  check_slot(slot);
  std::lock_guard hold(stripe_of_slot(slot).lock);
  return identities_of(slot);
}

IdentityStats StoreImpl::identity_stats() {
  IdentityStats sum;
  for (Stripe& stripe : stripes_) {
    std::lock_guard hold(stripe.lock);
    sum.sets += stripe.identities.sets();
    sum.bytes += stripe.identities.bytes();
    sum.spans += stripe.identities.spans();
  }
  return sum;
}

}  // namespace springtide
