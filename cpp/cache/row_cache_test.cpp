// Thousands of inserts and erases, compared with a simple model.
#include "cache/row_cache.h"

#include <map>
#include <random>
#include <set>

#include "testing/check.h"

namespace springtide::row_cache_test {

namespace {

using Pair = std::pair<TableId, Key>;

uint32_t floats_of(TableId table) { return 3 + 5u * table; }

}  // namespace

TEST(a_cache_holds_what_was_put_in_and_accounts_for_it) {
  std::mt19937_64 random(7);
  RowCache cache;
  std::map<Pair, float> model;
  std::set<Pair> dirty;
  for (int i = 0; i < 40000; ++i) {
    const Pair pair(static_cast<TableId>(random() % 3), static_cast<Key>(random() % 900) * (INT64_MAX / 1000));
    CachedRow* row = cache.find(pair.first, pair.second);
    if (!CHECK((row != nullptr) == model.contains(pair))) return;
    if (row == nullptr) {
      CachedRow& fresh = cache.insert(pair.first, pair.second, floats_of(pair.first));
      for (uint32_t f = 0; f < fresh.floats; ++f) fresh.image[f] = static_cast<float>(i);
      model[pair] = static_cast<float>(i);
      CHECK(!fresh.dirty && fresh.key() == pair.second && fresh.table == pair.first);
    } else if (random() % 3 == 0) {
      cache.erase(*row);
      model.erase(pair);
      dirty.erase(pair);
    } else {
      CHECK(row->image[0] == model[pair] && row->image[row->floats - 1] == model[pair]);
      cache.set_dirty(*row, random() % 2 == 0);
      row->dirty ? static_cast<void>(dirty.insert(pair)) : static_cast<void>(dirty.erase(pair));
    }
    if (i % 997 != 0) continue;
    uint64_t bytes = 0, dirty_bytes = 0;
    for (const auto& [key, value] : model) bytes += RowCache::row_bytes(floats_of(key.first));
    for (const Pair& key : dirty) dirty_bytes += RowCache::row_bytes(floats_of(key.first));
    size_t seen = 0;
    cache.for_each([&](const CachedRow& one) { seen += model.contains({one.table, one.key()}) ? 1 : 0; });
    CHECK(seen == model.size() && cache.rows() == model.size() && cache.dirty_rows() == dirty.size());
    CHECK(cache.bytes() == bytes && cache.dirty_bytes() == dirty_bytes);
  }
  cache.clear();
  CHECK(cache.rows() == 0 && cache.bytes() == 0 && cache.next_victim() == nullptr && cache.find(0, 0) == nullptr);
}

TEST(memory_of_rows_that_left_is_used_again) {
  RowCache cache;
  std::set<float*> images;
  for (Key key = 0; key < 500; ++key) images.insert(cache.insert(0, key, 64).image);
  for (Key key = 500; key < 20000; ++key) {
    cache.erase(*cache.find(0, key - 500));
    CHECK(images.contains(cache.insert(0, key, 64).image));
  }
  CHECK(cache.rows() == 500);
}

TEST(the_longest_unused_row_goes_first) {
  RowCache cache;
  for (Key key = 0; key < 4; ++key) cache.insert(0, key, 2);
  cache.touch(*cache.find(0, 0));
  cache.touch(*cache.find(0, 3));
  cache.touch(*cache.find(0, 1));
  for (const Key key : {2, 0, 3, 1}) {
    CHECK(cache.next_victim()->key() == key);
    cache.erase(*cache.next_victim());
  }
}

}  // namespace springtide::row_cache_test
