// A group with caches and a group without caches read the same values at every step. Both end with the same rows and
// optimizer state, bit for bit. Covers all optimizers, and any number of servers and ranks, capacity and flushes.
#include "cache/cached_backend.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "client/local_backend.h"
#include "testing/cached_groups.h"
#include "testing/check.h"

namespace springtide::cached_backend_test {

namespace {

// Data that ranks send directly to each other.
enum class Straight : uint8_t { nothing, rows, gradients };

// Random valid plans: which keys a rank trains, which rows fit, and what ranks exchange. Tracks which rank has which
// row, as a scheduler does.
class RandomPlans {
 public:
  RandomPlans(uint32_t ranks, size_t capacity, uint64_t seed, Straight straight)
      : capacity_(capacity), straight_(straight), random_(seed), held_(ranks) {}

  // The plans of the step in which rank r trains batch[r].
  std::vector<CachePlan> next(const std::vector<std::vector<Pair>>& batch) {
    const auto ranks = static_cast<uint32_t>(held_.size());
    std::vector<CachePlan> plans(ranks);
    ++step_;
    std::map<Pair, std::vector<uint32_t>> trainers;
    for (uint32_t r = 0; r < ranks; ++r) {
      plans[r].step = step_;
      plans[r].rank = r;
      for (const Pair& pair : batch[r]) trainers[pair].push_back(r);
    }
    std::map<Pair, uint32_t> keeper;
    std::vector<std::set<Pair>> kept(ranks);
    for (const auto& [pair, who] : trainers) {
      const uint32_t rank = choose(pair, who, kept);
      if (rank == ranks) continue;
      keeper[pair] = rank;
      kept[rank].insert(pair);
    }
    std::set<std::pair<uint32_t, Pair>> came;  // rows, or values of rows, that a rank gets without a pull
    for (uint32_t r = 0; r < ranks; ++r) part_with(plans, r, trainers, keeper, came);
    for (const auto& [pair, who] : trainers) {
      const auto home = keeper.find(pair);
      for (const uint32_t r : who) {
        const bool keeps = home != keeper.end() && home->second == r;
        if (keeps && held_[r].contains(pair)) {
          add(plans[r].hold_hit, pair);
        } else if (!came.contains({r, pair})) {
          add(keeps ? plans[r].hold_pull : plans[r].pass_pull, pair);
        }
        if (keeps || home == keeper.end()) continue;
        add(with(plans[r].gradient_sends, home->second), pair);
        add(with(plans[home->second].gradient_receives, r), pair);
      }
    }
    for (uint32_t r = 0; r < ranks; ++r) reserve_more(plans[r], r, kept[r]);
    for (uint32_t r = 0; r < ranks; ++r) held_[r].insert(kept[r].begin(), kept[r].end());
    return plans;
  }

 private:
  static void add(PlanKeys& to, const Pair& pair) { to.add(pair.first, pair.second); }
  static PlanKeys& with(std::vector<PeerRows>& all, uint32_t peer) {
    for (PeerRows& one : all)
      if (one.peer == peer) return one.rows;
    all.push_back({peer, {}});
    return all.back().rows;
  }

  // Returns the rank that keeps the row after this step; the number of ranks means no rank.
  uint32_t choose(const Pair& pair, const std::vector<uint32_t>& who, const std::vector<std::set<Pair>>& kept) {
    const auto ranks = static_cast<uint32_t>(held_.size());
    if (who.size() > 1 && (straight_ != Straight::gradients || random_() % 3 == 0)) return ranks;
    if (random_() % 8 == 0) return ranks;
    uint32_t rank = who[random_() % who.size()];
    for (const uint32_t one : who)
      if (held_[one].contains(pair) && random_() % 4 != 0) rank = one;
    return kept[rank].size() < capacity_ ? rank : ranks;
  }

  // Plans rows of rank r that other ranks train, and rows that rank r trains without keeping them.
  void part_with(std::vector<CachePlan>& plans, uint32_t r, const std::map<Pair, std::vector<uint32_t>>& trainers,
                 const std::map<Pair, uint32_t>& keeper, std::set<std::pair<uint32_t, Pair>>& came) {
    const std::set<Pair> before = held_[r];
    for (const Pair& pair : before) {
      const auto found = trainers.find(pair);
      if (found == trainers.end()) continue;
      const auto home = keeper.find(pair);
      const bool keeps = home != keeper.end() && home->second == r;
      const bool goes = keeps || (straight_ != Straight::nothing && home != keeper.end() && random_() % 4 != 0);
      for (const uint32_t other : found->second) {
        if (!goes || other == r) continue;
        const bool image = !keeps && other == home->second;
        // the row is pulled from the server, which has the latest value
        if (!image && random_() % 8 == 0 && !keeps) continue;
        add(with(image ? plans[r].sends : plans[r].value_sends, other), pair);
        add(with(image ? plans[other].receives : plans[other].value_receives, r), pair);
        came.insert({other, pair});
      }
      if (keeps) continue;
      const bool all_came = std::all_of(found->second.begin(), found->second.end(),
                                        [&](uint32_t other) { return other == r || came.contains({other, pair}); });
      if (!goes || !all_came) add(plans[r].write_back, pair);
      if (std::find(found->second.begin(), found->second.end(), r) != found->second.end()) {
        add(plans[r].pass_hit, pair);
        came.insert({r, pair});
      }
      add(plans[r].drop, pair);
      held_[r].erase(pair);
    }
  }

  void reserve_more(CachePlan& plan, uint32_t r, const std::set<Pair>& kept) {
    size_t fresh = 0;
    std::vector<Pair> others;
    for (const Pair& pair : kept) fresh += held_[r].contains(pair) ? 0 : 1;
    for (const Pair& pair : held_[r])
      if (!kept.contains(pair)) others.push_back(pair);
    while (held_[r].size() + fresh > capacity_) {
      const size_t at = random_() % others.size();
      add(plan.write_back, others[at]);
      add(plan.drop, others[at]);
      held_[r].erase(others[at]);
      others.erase(others.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  size_t capacity_;
  Straight straight_;
  std::mt19937_64 random_;
  uint64_t step_ = 0;
  std::vector<std::set<Pair>> held_;
};

struct Setting {
  uint16_t servers;
  uint32_t ranks;
  size_t capacity;
  Straight straight;
  bool shared;
  uint64_t seed, steps;
};

// The keys that one rank pushes: sometimes a table gets no gradient, or a step is skipped.
std::vector<Pair> trained_of(const std::vector<Pair>& own, uint64_t step) {
  std::vector<Pair> trained;
  if (step % 17 == 0) return trained;
  std::copy_if(own.begin(), own.end(), std::back_inserter(trained),
               [&](const Pair& pair) { return step % 5 != 0 || pair.first != (step / 5) % 10; });
  return trained;
}

void exchange_rows(std::vector<std::unique_ptr<CachedBackend>>& caches, uint64_t step) {
  for (uint32_t r = 0; r < caches.size(); ++r)
    for (const auto& parcel : caches[r]->sends(step)) caches[parcel.peer]->received(step, r, parcel.floats);
}

void train_both(const Setting& how) {
  const std::vector<TableSpec> specs = all_optimizers();
  std::vector<TableId> ids;
  for (const TableSpec& spec : specs)
    if (spec.id != 2) ids.push_back(spec.id);  // one table is not cached
  Cluster plain(how.servers, how.ranks), cached(how.servers, how.ranks);
  std::vector<std::unique_ptr<RemoteBackend>> direct;
  std::vector<std::shared_ptr<RemoteBackend>> behind;
  std::vector<std::unique_ptr<CachedBackend>> caches;
  for (uint32_t r = 0; r < how.ranks; ++r) {
    direct.push_back(std::make_unique<RemoteBackend>(plain.options(how.shared, r)));
    behind.push_back(std::make_shared<RemoteBackend>(cached.options(how.shared, r)));
    caches.push_back(std::make_unique<CachedBackend>(behind.back()));
    direct.back()->declare(specs);
    caches.back()->declare(specs);
    caches.back()->cache_tables(ids);
  }
  std::mt19937_64 random(how.seed);
  RandomPlans scheduler(how.ranks, how.capacity, how.seed + 1, how.straight);
  const auto plan_next = [&](uint64_t step, const auto& batch) {
    auto tables_cached = batch;
    for (auto& own : tables_cached) std::erase_if(own, [](const Pair& pair) { return pair.first == 2; });
    auto plans = scheduler.next(tables_cached);
    for (uint32_t r = 0; r < how.ranks; ++r) caches[r]->set_plan(step, std::move(plans[r]));
  };
  auto batch = random_batch(random, how.ranks, 24, 10, kKeySpace);
  plan_next(1, batch);
  exchange_rows(caches, 1);
  for (uint64_t step = 1; step <= how.steps; ++step) {
    const auto following = random_batch(random, how.ranks, 24, 10, kKeySpace);
    const bool last = step == how.steps, unseen = last || random() % 6 == 0, flush = random() % 5 == 0;
    bool same = true;
    for (uint32_t r = 0; r < how.ranks; ++r) {
      const Routed rows = routed(plain.placement, specs, batch[r]);
      same &= same_bits(values_of(*direct[r], rows, step - 1), values_of(*caches[r], rows, step - 1));
    }
    if (!CHECK(same)) return;
    if (!unseen) plan_next(step + 1, following);
    std::vector<Routed> rows(how.ranks);
    std::vector<std::vector<float>> grads(how.ranks);
    for (uint32_t r = 0; r < how.ranks; ++r) {
      rows[r] = routed(plain.placement, specs, trained_of(batch[r], step));
      grads[r] = random_gradients(random, rows[r]);
      const Part part{&rows[r], grads[r].data()};
      for (const auto& parcel : caches[r]->gradient_sends(step, std::span(&part, 1)))
        caches[parcel.peer]->gradients_received(step, r, parcel.floats);
    }
    for (uint32_t r = 0; r < how.ranks; ++r) {
      const Part part{&rows[r], grads[r].data()};
      const PushMeta meta = meta_of(step, specs);
      if (flush) caches[r]->flush_next();
      direct[r]->push(std::span(&part, 1), meta)->wait();
      caches[r]->push(std::span(&part, 1), meta)->wait();
    }
    CHECK(direct[0]->step_complete(step, 5) && behind[0]->step_complete(step, 5));
    for (uint32_t r = 0; r < how.ranks; ++r) {
      direct[r]->apply_step(step)->wait();
      behind[r]->apply_step(step)->wait();
    }
    for (auto& cache : caches) {
      const CacheStats stats = cache->stats();
      if (!CHECK(stats.rows <= how.capacity && ((!flush && !unseen) || stats.dirty_rows == 0))) return;
    }
    if (unseen && !last) plan_next(step + 1, following);
    exchange_rows(caches, step + 1);
    if ((flush || unseen) && !CHECK(same_bits(everything(plain, specs), everything(cached, specs)))) return;
    batch = following;
  }
  const CacheStats stats = caches[0]->stats();
  CHECK(how.capacity == 0 || (stats.trained_rows > 0 && stats.pushed_images > 0));
  CHECK(how.capacity < 50 || stats.hits > 0);
}

}  // namespace

TEST(a_cached_group_is_bit_identical_for_any_capacity) {
  uint64_t seed = 1;
  for (const size_t capacity : {0, 1, 7, 60, 10000})
    train_both({.servers = 2,
                .ranks = 3,
                .capacity = capacity,
                .straight = Straight::nothing,
                .shared = true,
                .seed = ++seed,
                .steps = 60});
}

TEST(a_cached_group_is_bit_identical_when_rows_go_from_rank_to_rank) {
  for (const Straight straight : {Straight::rows, Straight::gradients}) {
    const bool most = straight == Straight::gradients;
    train_both(
        {.servers = 3, .ranks = 4, .capacity = 10000, .straight = straight, .shared = false, .seed = 11, .steps = 60});
    train_both(
        {.servers = 1, .ranks = 2, .capacity = 9, .straight = straight, .shared = most, .seed = 12, .steps = 60});
  }
}

TEST(a_group_of_one_is_bit_identical_too) {
  train_both({.servers = 1,
              .ranks = 1,
              .capacity = 40,
              .straight = Straight::nothing,
              .shared = false,
              .seed = 21,
              .steps = 60});
}

namespace {

// One rank whose tables are in this process.
struct Alone {
  Alone() : specs(all_optimizers()) {
    StoreOptions options;
    options.slots = kSlots;
    options.reserve_bytes = 1 << 28;
    inner = std::make_shared<LocalBackend>(options, uint16_t{2});
    cache = std::make_unique<CachedBackend>(inner);
    cache->declare(specs);
    for (const TableSpec& spec : specs) cache->cache_tables(std::span(&spec.id, 1));
  }
  std::vector<float> pull(const std::vector<Pair>& pairs, uint64_t after_step) {
    return values_of(*cache, routed(*inner->placement(), specs, pairs), after_step);
  }
  void push(const std::vector<Pair>& pairs, uint64_t step, float grad = 1, bool unique = true) {
    const Routed rows = routed(*inner->placement(), specs, pairs);
    std::vector<float> grads(rows.row_offset.back(), grad);
    const std::vector<Part> parts(unique ? 1 : 2, Part{&rows, grads.data()});
    PushMeta meta = meta_of(step, specs);
    meta.unique = unique;
    cache->push(parts, meta)->wait();
  }
  static CachePlan holds(std::initializer_list<Pair> hit, std::initializer_list<Pair> pulled) {
    CachePlan plan;
    for (const Pair& pair : hit) plan.hold_hit.add(pair.first, pair.second);
    for (const Pair& pair : pulled) plan.hold_pull.add(pair.first, pair.second);
    return plan;
  }
  uint64_t rows() { return inner->store(0).rows() + inner->store(1).rows(); }

  std::vector<TableSpec> specs;
  std::shared_ptr<LocalBackend> inner;
  std::unique_ptr<CachedBackend> cache;
};

}  // namespace

TEST(a_row_that_is_only_read_is_not_created) {
  Alone alone;
  alone.cache->set_plan(1, Alone::holds({}, {{0, 5}, {5, 6}}));
  alone.pull({{0, 5}, {5, 6}}, 0);
  CHECK(alone.cache->stats().rows == 2);
  alone.push({{5, 6}}, 1);  // the other table got no gradient, and there is no next plan, so everything is written back
  CHECK(alone.rows() == 1 && alone.cache->stats().pushed_images == 1 && alone.cache->stats().rows == 2);
}

TEST(gradients_of_one_key_in_two_parts_are_summed_before_they_are_applied) {
  Alone cached, plain;
  cached.cache->set_plan(1, Alone::holds({}, {{3, 8}}));
  cached.pull({{3, 8}}, 0);
  cached.push({{3, 8}}, 1, 0.3f, false);
  plain.push({{3, 8}}, 1, 0.3f, false);  // without a plan, the cache has no effect
  CHECK(same_bits(cached.pull({{3, 8}}, 1), plain.pull({{3, 8}}, 1)));
  CHECK(cached.cache->stats().trained_rows == 1 && plain.cache->stats().trained_rows == 0);
}

TEST(what_no_plan_speaks_of_is_read_from_servers_only_while_they_have_everything) {
  Alone alone;
  alone.cache->set_plan(1, Alone::holds({}, {{0, 5}}));
  alone.cache->set_plan(2, Alone::holds({{0, 5}}, {}));
  alone.pull({{0, 5}, {0, 9}}, 0);
  CHECK_THROWS(BadInput, alone.pull({{0, 5}}, 1));  // too early, because the pull must see the previous push
  alone.push({{0, 5}}, 1);
  CHECK_THROWS(BadInput, alone.pull({{0, 9}}, 1));
  CHECK_THROWS(BadInput, alone.pull({{0, 5}}, 7));
  std::vector<Key> keys;
  std::vector<float> rows;
  CHECK_THROWS(BadInput, alone.cache->scan(0, keys, rows));
  CHECK_THROWS(BadInput, alone.push({{0, 9}}, 2));
  const Routed row = routed(*alone.inner->placement(), alone.specs, {{0, 5}});
  std::vector<float> zeros(4);
  const Part part{&row, zeros.data()};
  CHECK_THROWS(BadInput, alone.cache->assign(std::span(&part, 1), false));
  alone.cache->move_plan(2, 3);  // the first step has no gradients
  alone.cache->flush_next();
  alone.push({}, 2);
  CHECK(alone.cache->stats().dirty_rows == 0 && alone.rows() == 1);
  alone.pull({{0, 9}}, 2);
  alone.cache->scan(0, keys, rows);
  CHECK(keys == std::vector<Key>{5} && same_bits(rows, alone.pull({{0, 5}}, 2)));
  alone.push({{0, 5}}, 3);
  CHECK_THROWS(BadInput, alone.push({{0, 5}}, 3));
  alone.cache->clear();
  alone.cache->assign(std::span(&part, 1), false);
  CHECK(alone.pull({{0, 5}}, 3) == zeros);
}

TEST(plans_that_do_not_fit_the_cache_are_refused_with_the_key) {
  Alone alone;
  alone.cache->set_plan(1, Alone::holds({{0, 5}}, {}));
  try {
    alone.pull({{0, 5}}, 0);
    CHECK(false);
  } catch (const BadInput& e) {
    CHECK(std::string(e.what()).find("key 5 of table 't0' is not in this worker's cache") != std::string::npos);
  }
  CachePlan drops;
  alone.cache->clear();
  alone.cache->set_plan(1, Alone::holds({}, {{0, 5}}));
  alone.pull({{0, 5}}, 0);
  drops.drop.add(0, 5);
  alone.cache->set_plan(2, drops);
  CHECK_THROWS(BadInput, alone.push({{0, 5}}, 1));  // the row is dirty and was not written back
}

TEST(a_gradient_that_is_not_finite_changes_nothing) {
  Alone alone;
  alone.cache->set_plan(1, Alone::holds({}, {{1, 5}, {1, 6}}));
  const auto before = alone.pull({{1, 5}, {1, 6}}, 0);
  CHECK_THROWS(NonFinite, alone.push({{1, 5}, {1, 6}}, 1, INFINITY));
  CHECK(same_bits(before, alone.pull({{1, 5}, {1, 6}}, 0)) && alone.cache->stats().dirty_rows == 0);
}

TEST(parcels_of_another_size_than_the_plan_has_are_refused) {
  Alone alone;
  CachePlan plan;
  plan.receives.push_back({3, {}});
  plan.receives[0].rows.add(5, 1);  // adam of dim 5: 16 floats and a word
  alone.cache->set_plan(1, plan);
  CHECK(alone.cache->receives(1) == (std::vector<std::pair<uint32_t, size_t>>{{3, 17}}));
  std::vector<float> parcel(17, 0.5f);
  CHECK_THROWS(BadInput, alone.cache->received(1, 3, std::span(parcel).first(16)));
  CHECK_THROWS(BadInput, alone.cache->received(1, 2, parcel));
  alone.cache->received(1, 3, parcel);
  CHECK(alone.pull({{5, 1}}, 0) == std::vector<float>(5, 0.5f) && alone.cache->stats().dirty_rows == 1);
}

TEST(gradients_of_other_ranks_must_have_come_before_the_push) {
  Alone alone;
  CachePlan plan = Alone::holds({}, {{0, 5}});
  plan.rank = 1;
  for (const uint32_t peer : {2, 0}) {
    plan.gradient_receives.push_back({peer, {}});
    plan.gradient_receives.back().rows.add(0, 5);
  }
  alone.cache->set_plan(1, plan);
  const auto before = alone.pull({{0, 5}}, 0);
  CHECK(alone.cache->gradient_receives(1) == (CachedBackend::Sizes{{0, 5}, {2, 5}}));
  const std::vector<float> given = {1, 3, 3, 3, 3}, none(5, 0.0f);
  alone.cache->gradients_received(1, 0, given);
  CHECK_THROWS(BadInput, alone.push({{0, 5}}, 1));
  CHECK_THROWS(BadInput, alone.cache->gradients_received(1, 2, std::span(none).first(4)));
  CHECK(same_bits(alone.pull({{0, 5}}, 0), before));
  alone.cache->gradients_received(1, 2, none);  // the cache has no gradient of this key
  alone.push({{0, 5}}, 1, 2);
  const auto after = alone.pull({{0, 5}}, 1);
  CHECK(std::abs(before[0] - after[0] - 0.05f * (5 + 0.01f * before[0])) < 1e-5f);
}

TEST(tables_whose_rows_come_and_go_by_themselves_are_not_cached) {
  StoreOptions options;
  options.slots = kSlots;
  options.reserve_bytes = 1 << 28;
  CachedBackend cache(std::make_shared<LocalBackend>(options, uint16_t{1}));
  std::vector<TableSpec> specs = {table(0, 4), table(1, 4), table(2, 4)};
  specs[0].min_count = 2;
  specs[1].ttl = 100;
  specs[2].capacity_rows = 1000;
  cache.declare(specs);
  for (const TableId id : {0, 1, 2, 3}) CHECK_THROWS(BadInput, cache.cache_tables(std::span(&id, 1)));
}

}  // namespace springtide::cached_backend_test
