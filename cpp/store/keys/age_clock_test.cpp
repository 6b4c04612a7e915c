// Tests that ticks run out and are renumbered: ages, order and cuts do not change, in the clock and in a store.
#include "store/keys/age_clock.h"

#include <atomic>
#include <random>
#include <thread>

#include "slots/slot_copy.h"
#include "slots/slot_image.h"
#include "store/store.h"
#include "testing/check.h"

namespace springtide::age_clock_test {

// Renumbering locks all 64 stripes at the same time, which is the most locks that ThreadSanitizer allows a thread.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }

namespace {

constexpr uint32_t kSlots = 64;
constexpr uint32_t kFewTicks = 1500;
constexpr uint32_t kShare = 6;  // rows of table 1 that a slot may hold

// A table of each kind for which ages matter, each in its own store.
struct Tables {
  explicit Tables(uint32_t last_tick) : store({kSlots, 7, uint64_t{256} << 20, 1}) {
    store.clock.set_last_tick(last_tick);
    for (TableId id = 0; id < 3; ++id) {
      TableSpec spec;
      spec.id = id;
      spec.name = "t" + std::to_string(id);
      spec.dim = 2;
      if (id == 0) spec.ttl = 40;
      if (id == 1) spec.capacity_rows = kSlots * kShare;
      if (id == 2) spec.min_count = 3;
      store.declare(spec);
    }
  }
  PushStats push(std::span<const TableId> tables, std::span<const Key> keys, uint64_t at) {
    const std::vector<float> grads(2 * keys.size(), -1.0f);
    const TableHyper hyper[] = {{.table = 0, .lr = 1.0f}, {.table = 1, .lr = 1.0f}, {.table = 2, .lr = 1.0f}};
    return store.push(tables, keys, grads.data(), hyper, at, false);
  }
  std::vector<uint8_t> image(uint32_t slot, uint64_t since_cut) { return store.export_slot(slot, since_cut); }
  Store store;
};

}  // namespace

TEST(ticks_in_use_keep_age_and_order_and_the_others_are_free_again) {
  AgeClock clock;
  clock.refine(0, true);
  std::vector<uint32_t> ticks;
  for (uint64_t at = 1; at <= 100; ++at) {
    clock.advance(at);
    ticks.push_back(clock.tick());
  }
  std::vector<bool> used(ticks.back() + 1);
  for (size_t i = 0; i < 100; i += 10) used[ticks[i]] = true;
  std::vector<uint32_t> now;
  clock.renumber(used, now);
  for (size_t i = 0; i < 100; i += 10) {
    CHECK(clock.age_at(now[ticks[i]]) == i + 1);
    CHECK(i == 0 || now[ticks[i]] > now[ticks[i - 10]]);
  }
  CHECK(clock.age_at(clock.tick()) == 100);                 // the current tick is always in use
  CHECK(clock.tick() == 11 && clock.tick_for(1000) == 12);  // ten kept ticks and the current one
  CHECK(clock.tick_for(11) == now[ticks[10]]);              // a kept tick is found by its age
  clock.advance(101);
  CHECK(clock.tick() == 13 && clock.age_at(13) == 101);
}

TEST(what_lay_before_a_cut_lies_before_it_still) {
  AgeClock clock;
  clock.refine(0, true);
  std::vector<uint32_t> ticks;
  std::vector<uint64_t> cuts;
  for (uint64_t at = 1; at <= 60; ++at) {
    clock.advance(at);
    ticks.push_back(clock.tick());
    if (at % 20 == 0) cuts.push_back(clock.cut());
  }
  std::vector<bool> used(clock.tick() + 1);
  for (size_t i = 0; i < 60; ++i) used[ticks[i]] = i % 7 == 3 || i == 19 || i == 20;
  std::vector<uint32_t> now;
  clock.renumber(used, now);
  for (size_t c = 0; c < cuts.size(); ++c) {
    for (size_t i = 0; i < 60; ++i) {
      if (used[ticks[i]]) CHECK((now[ticks[i]] > clock.boundary(cuts[c])) == (i >= 20 * (c + 1)));
    }
    CHECK(clock.tick() > clock.boundary(cuts[c]));
  }
  // A row that is imported now counts as changed after the cut, even if its age is from before the cut.
  CHECK(clock.tick_for(33) > clock.boundary(cuts.back()));
}

TEST(a_clock_that_is_full_says_so) {
  AgeClock clock;
  clock.refine(0, true);
  clock.set_last_tick(16);
  for (uint64_t at = 1; at <= 14; ++at) clock.advance(at);
  CHECK(clock.nearly_full());
  CHECK_THROWS(BadInput, for (uint64_t at = 15; at < 20; ++at) clock.advance(at));
}

TEST(a_store_whose_ticks_run_out_is_as_one_whose_do_not) {
  Tables few(kFewTicks), many(kMaxStamp);
  std::mt19937_64 random(5);
  std::vector<uint64_t> cuts{0};
  uint32_t highest = 0, fell = 0;
  for (uint64_t at = 1; at <= 6000; ++at) {
    std::vector<TableId> tables(24);
    std::vector<Key> keys(24);
    for (size_t i = 0; i < keys.size(); ++i) {
      tables[i] = static_cast<TableId>(random() % 3);
      // Few rows are evicted, so their tombstones are kept, and these contain ticks.
      keys[i] = static_cast<Key>(random() % (at % 50 == 0 ? 400 : 8));
    }
    const PushStats here = few.push(tables, keys, at), there = many.push(tables, keys, at);
    if (here.applied != there.applied || here.created != there.created || here.evicted != there.evicted ||
        here.waiting != there.waiting) {
      CHECK(!"the push had the same effect in both");
      return;
    }
    if (at % 500 == 0) {
      cuts.push_back(few.store.clock.cut());
      CHECK(many.store.clock.cut() == cuts.back());
    }
    fell += few.store.clock.tick() < highest;
    highest = few.store.clock.tick();
  }
  CHECK(fell > 3 && many.store.clock.tick() > 6000);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    for (const uint64_t cut : cuts) CHECK(few.image(slot, cut) == many.image(slot, cut));
  }
}

TEST(images_of_many_ages_find_ticks_in_a_store_that_is_nearly_full) {
  Tables from(kMaxStamp), to(kFewTicks);
  const TableId table = 2;
  for (uint64_t at = 1; at <= 400; ++at) {
    const Key key = static_cast<Key>(at % 200);
    from.push({&table, 1}, {&key, 1}, at);
  }
  for (int round = 0; round < 20; ++round) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const std::vector<uint8_t> bytes = from.image(slot, 0);
      to.store.clock.cut();  // rows that change after a cut need new ticks
      to.store.import_slot(bytes);
      CHECK(to.image(slot, 0) == bytes);
    }
  }
}

TEST(a_slot_whose_stamps_are_numbered_anew_between_its_parts_is_copied_at_once) {
  Tables t(kFewTicks);
  std::vector<TableId> tables(900);
  std::vector<Key> keys(900);
  for (size_t i = 0; i < keys.size(); ++i) {
    tables[i] = static_cast<TableId>(i % 3);
    keys[i] = static_cast<Key>(i / 3);
  }
  uint64_t at = 0;
  for (int round = 0; round < 4; ++round) t.push(tables, keys, ++at);
  SlotCopy copy;
  size_t parts = 0, fell = 0;
  for (; !t.store.copy_slot(3, 0, copy, 40); ++parts) {
    const uint32_t before = t.store.clock.tick();
    for (uint32_t i = 0; i < kFewTicks; ++i) t.push({tables.data(), 3}, {keys.data() + i % 8, 3}, ++at);
    fell += t.store.clock.tick() < before + kFewTicks;
  }
  const auto given = copy.next(SIZE_MAX);
  std::vector<uint8_t> bytes(given.begin(), given.end());
  std::ranges::copy(copy.signature(), bytes.begin());
  CHECK(parts > 1 && fell == parts && bytes == t.image(3, 0));
}

TEST(ticks_may_run_out_while_others_push_copy_and_declare) {
  Tables t(100);
  const std::vector<TableId> tables(50, 1);
  std::vector<Key> keys(50);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<Key>(i);
  std::atomic<uint64_t> at{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> pushing;
  for (int i = 0; i < 3; ++i) {
    pushing.emplace_back([&] {
      for (int n = 0; n < 300; ++n) t.push(tables, keys, ++at);
    });
  }
  std::thread copying([&] {
    for (uint32_t n = 0; !over; ++n) t.image(n % kSlots, 0);
  });
  std::thread declaring([&] {
    for (TableId id = 3; id < 40; ++id) {
      TableSpec spec;
      spec.id = id;
      spec.name = "t" + std::to_string(id);
      spec.dim = 1;
      t.store.declare(spec);
    }
  });
  for (std::thread& thread : pushing) thread.join();
  over = true;
  copying.join();
  declaring.join();
  std::vector<float> rows(2 * keys.size());
  t.store.pull(tables, keys, rows.data(), nullptr);
  bool all = true;
  for (const float value : rows) all = all && value == 900.0f;
  CHECK(all && at == 900 && t.store.clock.tick() <= 100);
}

}  // namespace springtide::age_clock_test
