// Sets of batches compared with a plain set of samples, and slots that share sets.
#include "slots/identity_set.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "testing/check.h"

namespace springtide::identity_set_test {
using Has = IdentitySet::Has;

namespace {

SampleSpan span(uint32_t shard, uint64_t first, uint64_t end) { return {shard, first, end}; }
SampleSpan tail(uint32_t shard, uint64_t first, uint64_t end) { return {shard, first, end, true}; }
SampleRun run(uint32_t shard, uint64_t first, uint64_t end) { return {shard, shard, first, end}; }

std::vector<SampleSpan> one(uint32_t shard, uint64_t first, uint64_t end) { return {span(shard, first, end)}; }

// Records the spans at every slot that has none of them, as a push does. Returns true if all slots are alike.
bool admit(SlotIdentities& slots, const std::vector<SampleSpan>& spans, std::span<const uint8_t> spoken,
           std::vector<Verdict>& verdicts) {
  slots.judge(spans, spoken, verdicts);
  slots.reserve_more(spans, verdicts);
  slots.record(spans, verdicts);
  return verdicts.size() == 1;
}

}  // namespace

TEST(ranges_side_by_side_become_one_whatever_the_order) {
  IdentitySet set;
  for (uint64_t at : {4, 0, 12, 8}) set.add(span(1, at, at + 4));
  CHECK(set.runs() == std::vector{run(1, 0, 16)});
  CHECK(set.has(span(1, 4, 8)) == Has::all);
  CHECK(set.has(span(1, 12, 20)) == Has::some);
  CHECK(set.has(span(1, 16, 20)) == Has::none);
  CHECK(set.has(span(2, 0, 4)) == Has::none);
}

TEST(whole_shards_side_by_side_are_one_range_and_others_are_not) {
  IdentitySet set;
  set.add(tail(5, 4, 8));
  set.add(span(6, 0, 4));
  CHECK((set.runs() == std::vector<SampleRun>{{5, 6, 4, 4}}));
  set.add(tail(7, 0, 8));
  CHECK(set.runs().size() == 2);  // the rest of shard 6 lies between the two
  set.add(tail(6, 4, 8));
  set.add(span(5, 0, 4));
  CHECK((set.runs() == std::vector<SampleRun>{{5, 7, 0, kShardEnd}}));
  CHECK(set.has(span(6, 2, 8)) == Has::all && set.has(tail(7, 0, 8)) == Has::all);
  CHECK(set.has(span(4, 0, 1)) == Has::none && set.has(span(8, 0, 1)) == Has::none);
  // this lies beyond the end of the shard that a later push names; because of this inconsistency, nothing is applied
  set.add(span(3, 8, 9));
  CHECK(set.has(tail(3, 0, 8)) == Has::some && set.has(span(3, 0, 8)) == Has::none);
  set = IdentitySet(std::vector<SampleRun>{{5, 7, 0, kShardEnd}});
  set.add(span(9, 0, 8));  // not known to be complete
  set.add(span(10, 0, 8));
  set.add(tail(UINT32_MAX, 0, 8));
  set.add(span(0, 0, 8));
  CHECK(set.runs().size() == 5);
  CHECK(set.has(span(UINT32_MAX, 0, 8)) == Has::all);
}

// In whatever order shards are trained, complete shards merge into ranges.
TEST(a_hundred_thousand_finished_shards_are_as_many_ranges_as_are_under_way) {
  constexpr uint32_t kShards = 100'000, kWorkers = 16;
  std::mt19937_64 random(5);
  IdentitySet set;
  std::vector<std::pair<uint32_t, uint64_t>> held;  // by worker: its shard, and its position in the shard
  uint32_t next = 0;
  size_t most = 0;
  for (; next < kWorkers; ++next) held.emplace_back(next, 0);
  while (!held.empty()) {
    auto& [shard, at] = held[random() % held.size()];
    set.add(at == 2 ? tail(shard, at, at + 1) : span(shard, at, at + 1));
    if (++at == 3) {
      shard = next < kShards ? next++ : UINT32_MAX, at = 0;
      std::erase_if(held, [](const auto& one) { return one.first == UINT32_MAX; });
    }
    most = std::max(most, set.runs().size());
  }
  CHECK((set.runs() == std::vector<SampleRun>{{0, kShards - 1, 0, kShardEnd}}));
  CHECK(most <= kWorkers + 1);
}

TEST(a_set_answers_like_a_set_of_samples) {
  std::mt19937_64 random(11);
  constexpr uint64_t kSamples = 20;  // samples per shard; the size of the last shard is unknown
  for (int round = 0; round < 200; ++round) {
    IdentitySet set;
    std::set<std::tuple<uint32_t, uint64_t>> plain;
    for (int step = 0; step < 80; ++step) {
      const auto shard = static_cast<uint32_t>(random() % 4);
      const uint64_t first = random() % kSamples;
      const uint64_t end = std::min(kSamples, first + 1 + random() % 9);
      size_t held = 0;
      for (uint64_t at = first; at < end; ++at) held += plain.contains({shard, at}) ? 1 : 0;
      const Has wanted = held == 0 ? Has::none : held == end - first ? Has::all : Has::some;
      const SampleSpan named{shard, first, end, shard != 3 && end == kSamples};
      CHECK(set.has(named) == wanted && set.has(span(shard, first, end)) == wanted);
      if (wanted != Has::none) continue;
      set.add(named);
      for (uint64_t at = first; at < end; ++at) plain.insert({shard, at});
    }
    const IdentitySet again(set.runs());
    CHECK(again == set);
    size_t runs = 0;  // minimum possible number of runs
    for (const auto& [shard, at] : plain) {
      const bool first =
          at == 0 ? shard == 0 || !plain.contains({shard - 1, kSamples - 1}) : !plain.contains({shard, at - 1});
      runs += first ? 1 : 0;
    }
    CHECK(set.runs().size() == runs);
  }
}

TEST(a_push_names_each_sample_once) {
  const std::vector<BatchRange> batches{{12, 2, 8, 4}, {0, 1, 0, 4}, {12, 2, 4, 4}, {0, 9, 1, 0}};
  CHECK((spans_of(batches) == std::vector<SampleSpan>{span(1, 0, 4), tail(2, 4, 12)}));
  const std::vector<BatchRange> twice{{0, 1, 0, 4}, {0, 1, 0, 4}}, endless{{0, 1, 2, UINT64_MAX - 2}},
      nowhere{{0, 1, UINT64_MAX, 1}}, beyond{{8, 1, 4, 8}}, behind{{4, 1, 0, 4}, {0, 1, 4, 4}};
  for (const auto& bad : {twice, endless, nowhere, beyond, behind}) CHECK_THROWS(BadInput, spans_of(bad));
}

TEST(a_damaged_set_is_refused) {
  using Runs = std::vector<SampleRun>;
  for (const Runs& bad : {Runs{run(1, 4, 4)}, Runs{run(1, 4, 8), run(1, 6, 9)}, Runs{run(1, 4, 8), run(1, 8, 9)},
                          Runs{run(2, 0, 4), run(1, 0, 4)}, Runs{{5, 4, 0, 4}}, Runs{{4, 5, 2, 0}},
                          Runs{run(4, 0, kShardEnd), run(5, 0, 4)}}) {
    CHECK_THROWS(BadInput, IdentitySet set(bad));
  }
}

TEST(slots_share_one_set_until_they_differ_and_again_when_they_are_equal) {
  SlotIdentities slots(4);
  std::vector<Verdict> verdicts;
  const std::vector<uint8_t> second{0, 1, 0, 0}, others{1, 0, 1, 1};
  CHECK(admit(slots, one(1, 0, 4), {}, verdicts) && verdicts[0] == Verdict::apply);
  CHECK(!admit(slots, one(1, 4, 8), second, verdicts));
  CHECK(verdicts[1] == Verdict::apply && verdicts[0] == Verdict::foreign);
  CHECK(slots.sets() == 2);
  CHECK(!admit(slots, one(1, 4, 8), {}, verdicts));  // a late duplicate
  CHECK(verdicts[1] == Verdict::had && verdicts[3] == Verdict::apply);
  CHECK(slots.sets() == 1);
  slots.put(2, {});
  CHECK(slots.sets() == 2);
  CHECK(slots.of(2).runs().empty() && slots.of(3).runs() == std::vector{run(1, 0, 8)});
  slots.put(2, slots.of(3));
  CHECK(slots.sets() == 1);
  CHECK(!admit(slots, one(1, 8, 12), others, verdicts) && slots.sets() == 2);
}

TEST(a_push_of_which_a_slot_has_a_part_is_refused_there_only) {
  SlotIdentities slots(2);
  std::vector<Verdict> verdicts;
  const std::vector<uint8_t> first{1, 0};
  admit(slots, one(1, 0, 4), first, verdicts);
  admit(slots, one(1, 0, 8), {}, verdicts);
  CHECK(verdicts[0] == Verdict::torn && verdicts[1] == Verdict::apply);
  CHECK(slots.of(0).runs() == std::vector{run(1, 0, 4)});
}

}  // namespace springtide::identity_set_test
