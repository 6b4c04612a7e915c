// The index alone, with many collisions: random inserts and erases compared with std::map.
#include "store/index/slot_index.h"

#include <map>
#include <random>

#include "testing/check.h"

namespace springtide::slot_index_test {

namespace {

constexpr uint32_t kSlots = 64;

// Returns hashes that share a few home lines, so that lines overflow and erasing must move cells back.
uint64_t crowded(std::mt19937_64& random) {
  uint64_t hash = random() % 5 == 0 ? random() : (random() & ~uint64_t{0xff}) | (random() % 6 * 3 + random() % 2);
  return hash >> 6;  // all in slot 0
}

void play(uint64_t seed, int calls, size_t most, uint64_t reserved = 0) {
  std::mt19937_64 random(seed);
  std::vector<TableId> owners(16, 7);
  owners[0] = kNoTable;
  SlotIndex index(kSlots, size_t{64} << 20, owners.data());
  Slot& slot = index.slot(0);
  index.reserve(slot, reserved);
  std::map<uint64_t, uint64_t> wanted;
  for (int call = 0; call < calls; ++call) {
    bool add = wanted.size() < most && (random() % 3 != 0 || wanted.empty());
    if (add) {
      uint64_t hash = crowded(random), meta = row_meta(uint64_t{1 + random() % 15} << kRowBits, 3);
      if (wanted.emplace(hash, meta).second) index.insert(slot, hash, meta);
    } else {
      auto victim = wanted.lower_bound(crowded(random));
      if (victim == wanted.end()) victim = wanted.begin();
      index.erase(slot, index.find(slot, victim->first, 7));
      CHECK(index.find(slot, victim->first, 7) == nullptr);
      wanted.erase(victim);
    }
    if (call % 64 != 0) continue;
    for (auto [hash, meta] : wanted) {
      Cell* cell = index.find(slot, hash, 7);
      if (!CHECK(cell != nullptr && cell->meta == meta)) return;
      CHECK(index.find(slot, hash, 8) == nullptr);
    }
  }
  size_t seen = 0;
  index.for_each(slot, [&](const Cell& cell) { seen += wanted.count(cell.hash); });
  CHECK(seen == wanted.size() && slot.cells == wanted.size());
  index.clear(slot);
  CHECK(slot.cells == 0 && (wanted.empty() || index.find(slot, wanted.begin()->first, 7) == nullptr));
}

}  // namespace

TEST(small_segments_keep_every_cell_findable) {
  for (uint64_t seed = 0; seed < 40; ++seed) play(seed, 600, 10 + seed);
}

TEST(splitting_segments_keep_every_cell_findable) {
  for (uint64_t seed = 0; seed < 3; ++seed) play(seed, 30000, 12000);
}

TEST(slots_that_were_given_room_at_once_keep_every_cell_findable_and_grow_on) {
  for (uint64_t seed = 0; seed < 40; ++seed) play(seed, 600, 10 + seed, 1 + seed);
  for (uint64_t room : {400, 700, 1400, 6000, 60000}) play(room, 20000, 12000, room);
}

TEST(room_given_at_once_takes_no_more_memory_than_growing) {
  std::vector<TableId> owners{kNoTable, 7};
  const auto segments = [&](bool at_once) {
    SlotIndex index(kSlots, size_t{256} << 20, owners.data());
    std::mt19937_64 random(2);
    for (uint32_t number = 0; number < kSlots; ++number) {
      const uint64_t cells = 300 * (1 + number);
      if (at_once) index.reserve(index.slot(number), cells);
      for (uint64_t i = 0; i < cells; ++i) {
        index.insert(index.slot(number), uint64_t{number} << 58 | random() >> 6, row_meta(uint64_t{1} << kRowBits, 1));
      }
    }
    return static_cast<double>(index.resident());
  };
  CHECK(segments(true) < 1.1 * segments(false));
}

TEST(memory_of_cleared_slots_comes_back) {
  std::vector<TableId> owners{kNoTable, 7};
  SlotIndex index(kSlots, size_t{64} << 20, owners.data());
  size_t once = 0;
  for (int round = 0; round < 5; ++round) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 100000; ++i) {
      uint64_t hash = random();
      index.insert(index.slot(static_cast<uint32_t>(hash >> 58)), hash, row_meta(uint64_t{1} << kRowBits, 1));
    }
    if (round == 0) once = index.resident();
    CHECK(index.resident() == once);
    for (uint32_t number = 0; number < kSlots; ++number) index.clear(index.slot(number));
  }
}

}  // namespace springtide::slot_index_test
