#include "identity_set.h"

#include <algorithm>
#include <tuple>

#include "hash.h"

namespace springtide {

namespace {

auto shard_of(const SampleSpan& s) { return std::tuple(s.shard, s.epoch); }
auto place_of(const SampleSpan& s) { return std::tuple(s.shard, s.epoch, s.first); }

uint64_t print_of(const SampleSpan& s) {
  return mix64(mix64(mix64((uint64_t{s.shard} << 32 | s.epoch) + 1) + s.first) + s.end);
}
uint64_t print_of(const ShardRun& run) { return mix64(mix64(uint64_t{run.first} << 32 | run.last) + 2); }

// Joins neighbours, in place.
void join(std::vector<SampleSpan>& spans) {
  size_t kept = 0;
  for (const SampleSpan& span : spans) {
    if (kept != 0 && shard_of(spans[kept - 1]) == shard_of(span) && spans[kept - 1].end == span.first) {
      spans[kept - 1].end = span.end;
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
}

}  // namespace

std::string name_of(const SampleSpan& span) {
  return "samples " + std::to_string(span.first) + " to " + std::to_string(span.end) + " of shard " +
         std::to_string(span.shard) + " (epoch " + std::to_string(span.epoch) + ")";
}

std::vector<SampleSpan> spans_of(std::span<const BatchRange> batches) {
  std::vector<SampleSpan> spans;
  spans.reserve(batches.size());
  for (const BatchRange& batch : batches) {
    if (batch.count > UINT64_MAX - batch.first) {
      throw BadInput("a batch of " + std::to_string(batch.count) + " samples from sample " +
                     std::to_string(batch.first) + " of shard " + std::to_string(batch.shard) +
                     " ends nowhere");
    }
    if (batch.count != 0) spans.push_back({batch.shard, batch.epoch, batch.first, batch.first + batch.count});
  }
  std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return place_of(a) < place_of(b); });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (shard_of(spans[i - 1]) == shard_of(spans[i]) && spans[i].first < spans[i - 1].end) {
      throw BadInput("a push names " + name_of(spans[i - 1]) + " and " + name_of(spans[i]) +
                     ": batches of one push must not overlap");
    }
  }
  join(spans);
  return spans;
}

IdentitySet::IdentitySet(std::vector<SampleSpan> spans, std::vector<ShardRun> finished)
    : spans_(std::move(spans)), finished_(std::move(finished)) {
  for (size_t i = 0; i < spans_.size(); ++i) {
    const bool after =
        i == 0 || shard_of(spans_[i - 1]) < shard_of(spans_[i]) ||
        (shard_of(spans_[i - 1]) == shard_of(spans_[i]) && spans_[i - 1].end < spans_[i].first);
    if (!after || spans_[i].first >= spans_[i].end) throw BadInput("applied batches: not in order");
    fingerprint_ += print_of(spans_[i]);
  }
  for (size_t i = 0; i < finished_.size(); ++i) {
    const bool after = i == 0 || uint64_t{finished_[i - 1].last} + 1 < finished_[i].first;
    if (!after || finished_[i].first > finished_[i].last) throw BadInput("finished shards: not in order");
    fingerprint_ += print_of(finished_[i]);
  }
}

size_t IdentitySet::find(const SampleSpan& span) const {
  // Spans of one shard do not overlap, so their ends are in order too.
  const auto ends_before = [](const SampleSpan& have, const SampleSpan& wanted) {
    return std::tuple(have.shard, have.epoch, have.end) <= place_of(wanted);
  };
  // Shards under way are the newest: by steps that double, from the back, old ones are not even read.
  size_t low = 0, high = spans_.size();
  for (size_t step = 1; high > 0; step *= 2) {
    const size_t at = high > step ? high - step : 0;
    if (ends_before(spans_[at], span)) {
      low = at + 1;
      break;
    }
    high = at;
  }
  const auto first = spans_.begin();
  return static_cast<size_t>(std::lower_bound(first + static_cast<ptrdiff_t>(low),
                                              first + static_cast<ptrdiff_t>(high), span, ends_before) -
                             first);
}

bool IdentitySet::has_finished(uint32_t shard) const {
  const auto run = std::lower_bound(finished_.begin(), finished_.end(), shard,
                                    [](const ShardRun& have, uint32_t wanted) { return have.last < wanted; });
  return run != finished_.end() && run->first <= shard;
}

IdentitySet::Has IdentitySet::has(const SampleSpan& span) const {
  if (has_finished(span.shard)) return Has::all;
  const size_t at = find(span);
  if (at == spans_.size()) return Has::none;
  const SampleSpan& next = spans_[at];
  if (shard_of(next) != shard_of(span) || next.first >= span.end) return Has::none;
  return next.first <= span.first && span.end <= next.end ? Has::all : Has::some;
}

IdentitySet::Has IdentitySet::has(std::span<const SampleSpan> spans) const {
  if (spans.empty()) return Has::none;
  const Has first = has(spans[0]);
  for (const SampleSpan& span : spans.subspan(1)) {
    if (first == Has::some || has(span) != first) return Has::some;
  }
  return first;
}

void IdentitySet::add(const SampleSpan& span) {
  const size_t at = find(span);
  const bool before =
      at > 0 && shard_of(spans_[at - 1]) == shard_of(span) && spans_[at - 1].end == span.first;
  const bool after =
      at < spans_.size() && shard_of(spans_[at]) == shard_of(span) && spans_[at].first == span.end;
  if (before && after) {
    fingerprint_ -= print_of(spans_[at - 1]) + print_of(spans_[at]);
    spans_[at - 1].end = spans_[at].end;
    fingerprint_ += print_of(spans_[at - 1]);
    spans_.erase(spans_.begin() + static_cast<ptrdiff_t>(at));
    return;
  }
  if (!before && !after) {
    spans_.insert(spans_.begin() + static_cast<ptrdiff_t>(at), span);
    fingerprint_ += print_of(span);
    return;
  }
  SampleSpan& grown = spans_[before ? at - 1 : at];
  fingerprint_ -= print_of(grown);
  (before ? grown.end : grown.first) = before ? span.end : span.first;
  fingerprint_ += print_of(grown);
}

void IdentitySet::finish(uint32_t shard) {
  if (has_finished(shard)) return;
  const auto [from, to] =
      std::equal_range(spans_.begin(), spans_.end(), SampleSpan{shard, 0, 0, 0},
                       [](const SampleSpan& a, const SampleSpan& b) { return a.shard < b.shard; });
  for (auto span = from; span != to; ++span) fingerprint_ -= print_of(*span);
  spans_.erase(from, to);
  auto next = std::lower_bound(finished_.begin(), finished_.end(), shard,
                               [](const ShardRun& have, uint32_t wanted) { return have.last < wanted; });
  ShardRun run{shard, shard};
  if (next != finished_.end() && shard != UINT32_MAX && next->first == shard + 1) {
    run.last = next->last;
    fingerprint_ -= print_of(*next);
    next = finished_.erase(next);
  }
  if (next != finished_.begin() && std::prev(next)->last + uint64_t{1} == shard) {
    --next;
    fingerprint_ -= print_of(*next);
    next->last = run.last;
  } else {
    next = finished_.insert(next, run);
  }
  fingerprint_ += print_of(*next);
}

}  // namespace springtide
