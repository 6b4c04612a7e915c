// Sets of batches against a plain set of samples, and slots that share them.
#include "identity_set.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "check.h"
#include "slot_identities.h"

using namespace springtide;
using Has = IdentitySet::Has;

namespace {

SampleSpan span(uint32_t shard, uint64_t first, uint64_t end) { return {shard, 0, first, end}; }

std::vector<SampleSpan> one(uint32_t shard, uint64_t first, uint64_t end) {
  return {span(shard, first, end)};
}

// Records the spans at every slot that has none of them, as a push does. True: all slots are alike.
bool admit(SlotIdentities& slots, const std::vector<SampleSpan>& spans, std::span<const uint8_t> spoken,
           std::vector<Verdict>& verdicts) {
  slots.judge(spans, spoken, verdicts);
  slots.make_room(spans, verdicts);
  slots.record(spans, verdicts);
  return verdicts.size() == 1;
}

}  // namespace

TEST(ranges_side_by_side_become_one_whatever_the_order) {
  IdentitySet set;
  for (uint64_t at : {4, 0, 12, 8}) set.add(span(1, at, at + 4));
  CHECK(set.spans() == one(1, 0, 16));
  CHECK(set.has(span(1, 4, 8)) == Has::all);
  CHECK(set.has(span(1, 12, 20)) == Has::some);
  CHECK(set.has(span(1, 16, 20)) == Has::none);
  CHECK(set.has(span(2, 0, 4)) == Has::none);
}

TEST(epochs_of_one_shard_number_are_apart) {
  IdentitySet set;
  set.add({3, 0, 0, 4});
  CHECK(set.has(SampleSpan{3, 1, 0, 4}) == Has::none);
  set.add({3, 1, 4, 8});
  CHECK(set.spans().size() == 2);
}

TEST(a_finished_shard_is_remembered_as_finished_and_neighbours_are_one) {
  IdentitySet set;
  set.add(span(5, 0, 8));
  set.add(span(6, 0, 8));
  for (uint32_t shard : {5, 7, 6, 6}) set.finish(shard);
  CHECK(set.spans().empty());
  CHECK((set.finished() == std::vector<ShardRun>{{5, 7}}));
  CHECK(set.has(span(6, 100, 200)) == Has::all);
  CHECK(set.has(span(8, 0, 1)) == Has::none);
  set.finish(UINT32_MAX);
  set.finish(0);
  CHECK(set.finished().size() == 3);
  CHECK(set.has(span(UINT32_MAX, 0, 1)) == Has::all);
}

TEST(a_set_answers_like_a_set_of_samples) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    IdentitySet set;
    std::set<std::tuple<uint32_t, uint64_t>> plain;
    std::set<uint32_t> finished;
    for (int step = 0; step < 60; ++step) {
      const auto shard = static_cast<uint32_t>(random() % 4);
      const uint64_t first = random() % 20, end = first + 1 + random() % 5;
      if (random() % 20 == 0) {
        set.finish(shard);
        finished.insert(shard);
        continue;
      }
      size_t held = 0;
      for (uint64_t at = first; at < end; ++at)
        held += finished.contains(shard) || plain.contains({shard, at}) ? 1 : 0;
      const Has wanted = held == 0 ? Has::none : held == end - first ? Has::all : Has::some;
      CHECK(set.has(span(shard, first, end)) == wanted);
      if (wanted != Has::none) continue;
      set.add(span(shard, first, end));
      for (uint64_t at = first; at < end; ++at) plain.insert({shard, at});
    }
    const IdentitySet again(set.spans(), set.finished());
    CHECK(again == set);
    CHECK(again.fingerprint() == set.fingerprint());
  }
}

TEST(a_push_names_each_sample_once) {
  const std::vector<BatchRange> batches{{0, 2, 8, 4}, {0, 1, 0, 4}, {0, 2, 4, 4}, {0, 9, 1, 0}};
  CHECK((spans_of(batches) == std::vector<SampleSpan>{span(1, 0, 4), span(2, 4, 12)}));
  const std::vector<BatchRange> twice{{0, 1, 0, 4}, {0, 1, 0, 4}}, endless{{0, 1, 2, UINT64_MAX}};
  CHECK_THROWS(BadInput, spans_of(twice));
  CHECK_THROWS(BadInput, spans_of(endless));
}

TEST(a_damaged_set_is_refused) {
  CHECK_THROWS(BadInput, IdentitySet({span(1, 4, 4)}, {}));
  CHECK_THROWS(BadInput, IdentitySet({span(1, 4, 8), span(1, 6, 9)}, {}));
  CHECK_THROWS(BadInput, IdentitySet({span(2, 0, 4), span(1, 0, 4)}, {}));
  CHECK_THROWS(BadInput, IdentitySet({}, {{5, 4}}));
  CHECK_THROWS(BadInput, IdentitySet({}, {{1, 4}, {5, 6}}));
}

TEST(slots_share_one_set_until_they_differ_and_again_when_they_are_equal) {
  SlotIdentities slots(4);
  std::vector<Verdict> verdicts;
  const std::vector<uint8_t> second{0, 1, 0, 0}, others{1, 0, 1, 1};
  CHECK(admit(slots, one(1, 0, 4), {}, verdicts) && verdicts[0] == Verdict::apply);
  CHECK(!admit(slots, one(1, 4, 8), second, verdicts));
  CHECK(verdicts[1] == Verdict::apply && verdicts[0] == Verdict::foreign);
  CHECK(slots.sets() == 2);
  CHECK(!admit(slots, one(1, 4, 8), {}, verdicts));  // the late copy of all of it
  CHECK(verdicts[1] == Verdict::had && verdicts[3] == Verdict::apply);
  CHECK(slots.sets() == 1);
  slots.put(2, {});
  CHECK(slots.sets() == 2);
  CHECK(slots.of(2).spans().empty() && slots.of(3).spans() == one(1, 0, 8));
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
  CHECK(slots.of(0).spans() == one(1, 0, 4));
}

CHECK_MAIN
