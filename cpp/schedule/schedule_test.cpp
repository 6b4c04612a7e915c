// Tests the scheduler on random streams. Plans are executed on simulated caches and servers that count the updates of
// each row. No worker reads an outdated row, and every key of a sample is in one list of its rank's plan. All gradients
// of a kept row reach its keeper. Two schedulers make the same plans from the same batches.
#include "schedule/schedule.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "testing/check.h"

namespace springtide::schedule_test {

namespace {

using Row = std::pair<TableId, Key>;
using Versions = std::map<Row, uint64_t>;

struct Batch {
  uint32_t samples;
  std::vector<std::vector<Key>> ids;  // by table; two tables have one id per sample, and the third has bags
  std::vector<int64_t> offsets;
  std::vector<std::set<Row>> rows;  // by sample

  Batch(std::mt19937& random, uint32_t count) : samples(count), ids(3), offsets{0}, rows(count) {
    const auto key = [&] { return static_cast<Key>((random() % 40) * (random() % 40) / 40); };
    for (uint32_t i = 0; i < samples; ++i) {
      ids[0].push_back(key());
      ids[1].push_back(-1 - key());
      for (uint32_t bag = static_cast<uint32_t>(random() % 4); bag > 0; --bag) {
        ids[2].push_back(key());
        rows[i].emplace(TableId{2}, ids[2].back());
      }
      offsets.push_back(static_cast<int64_t>(ids[2].size()));
      rows[i].emplace(TableId{0}, ids[0].back());
      rows[i].emplace(TableId{1}, ids[1].back());
    }
  }
  std::vector<BatchFeature> features() const { return {{0, ids[0], {}}, {1, ids[1], {}}, {2, ids[2], offsets}}; }
};

std::vector<Row> rows_of(const PlanKeys& keys) {
  std::vector<Row> rows;
  for (size_t i = 0; i < keys.size(); ++i) rows.emplace_back(keys.tables[i], keys.keys[i]);
  return rows;
}

// Counts what plans do, by kind, to ensure that the test covers every kind.
struct Seen {
  size_t hits = 0, pulls = 0, written_back = 0, dropped = 0, images = 0, values = 0, gradients = 0;
};

// Which ranks train the rows of one step, keep them, and send their gradients.
struct Roles {
  std::map<Row, std::set<uint32_t>> trainers, givers;
  std::map<Row, uint32_t> keeper;
};

// Simulated caches and servers, with the number of updates of each row.
struct World {
  std::vector<Versions> caches;
  Versions servers, latest;
  Seen seen;

  explicit World(uint32_t workers) : caches(workers) {}

  void carry_out(const Scheduled& made, const Batch& batch, uint64_t capacity) {
    std::map<std::pair<uint32_t, Row>, uint64_t> images, values;  // in flight, by receiver
    for (const auto& plan : made.plans) {
      Versions& cache = caches[plan->rank];
      for (const Row& row : rows_of(plan->write_back)) CHECK(cache.contains(row)), servers[row] = cache[row];
      for (const PeerRows& to : plan->sends)
        for (const Row& row : rows_of(to.rows)) images[{to.peer, row}] = cache.at(row);
      for (const PeerRows& to : plan->value_sends)
        for (const Row& row : rows_of(to.rows)) values[{to.peer, row}] = cache.at(row);
    }
    Roles roles;
    for (const auto& plan : made.plans) read(*plan, batch, made, images, values, roles);
    for (const auto& plan : made.plans) give(*plan, roles);
    for (auto& [row, trainers] : roles.trainers) {
      ++latest[row];
      const auto keeper = roles.keeper.find(row);
      if (keeper == roles.keeper.end()) {
        servers[row] = latest[row];  // all gradients went to the server
        CHECK(!roles.givers.contains(row));
      } else {
        caches[keeper->second][row] = latest[row];
        CHECK(trainers.erase(keeper->second) == 1 && trainers == roles.givers[row]);
      }
    }
    for (const Versions& cache : caches) CHECK(cache.size() <= capacity);
  }

  void read(const CachePlan& plan, const Batch& batch, const Scheduled& made, const auto& images, const auto& values,
            Roles& roles) {
    Versions& cache = caches[plan.rank];
    std::vector<Row> named;
    const auto see = [&](const Row& row, uint64_t version, bool keeps) {
      CHECK(version == latest[row]);
      named.push_back(row);
      if (keeps) CHECK(roles.keeper.emplace(row, plan.rank).second);
    };
    for (const Row& row : rows_of(plan.hold_hit)) see(row, cache.at(row), true);
    for (const Row& row : rows_of(plan.pass_hit)) see(row, cache.at(row), false);
    for (const Row& row : rows_of(plan.drop)) CHECK(cache.erase(row) == 1);
    for (const Row& row : rows_of(plan.hold_pull)) see(row, servers[row], true);
    for (const Row& row : rows_of(plan.pass_pull)) see(row, servers[row], false);
    for (const PeerRows& from : plan.receives)
      for (const Row& row : rows_of(from.rows)) see(row, images.at({plan.rank, row}), true);
    for (const PeerRows& from : plan.value_receives)
      for (const Row& row : rows_of(from.rows)) see(row, values.at({plan.rank, row}), false);
    std::set<Row> wanted;
    for (uint32_t i = 0; i < batch.samples; ++i)
      if (made.rank_of_sample[i] == static_cast<int32_t>(plan.rank)) wanted.merge(std::set(batch.rows[i]));
    std::sort(named.begin(), named.end());
    CHECK(std::ranges::equal(named, wanted));
    for (const Row& row : wanted) roles.trainers[row].insert(plan.rank);
    seen.hits += plan.hits();
    seen.pulls += plan.pulls();
    seen.written_back += plan.write_back.size();
    seen.dropped += plan.drop.size();
    seen.images += CachePlan::rows_of(plan.receives);
    seen.values += CachePlan::rows_of(plan.value_receives);
  }

  // Gradients go to the keeper, which expects every one of them.
  void give(const CachePlan& plan, Roles& roles) {
    for (const PeerRows& to : plan.gradient_sends) {
      for (const Row& row : rows_of(to.rows)) {
        const auto keeper = roles.keeper.find(row);
        CHECK(keeper != roles.keeper.end() && keeper->second == to.peer);
        CHECK(roles.givers[row].insert(plan.rank).second);
      }
    }
    seen.gradients += CachePlan::rows_of(plan.gradient_receives);
  }

  void flush() {
    for (const Versions& cache : caches)
      for (const auto& [row, version] : cache) servers[row] = version;
  }
};

bool same(const PlanKeys& a, const PlanKeys& b) { return a.tables == b.tables && a.keys == b.keys; }

bool same(const std::vector<PeerRows>& a, const std::vector<PeerRows>& b) {
  return std::ranges::equal(a, b, [](const PeerRows& one, const PeerRows& other) {
    return one.peer == other.peer && same(one.rows, other.rows);
  });
}

bool same(const CachePlan& a, const CachePlan& b) {
  return same(a.write_back, b.write_back) && same(a.drop, b.drop) && same(a.hold_hit, b.hold_hit) &&
         same(a.hold_pull, b.hold_pull) && same(a.pass_hit, b.pass_hit) && same(a.pass_pull, b.pass_pull) &&
         same(a.sends, b.sends) && same(a.receives, b.receives) && same(a.value_sends, b.value_sends) &&
         same(a.value_receives, b.value_receives) && same(a.gradient_sends, b.gradient_sends) &&
         same(a.gradient_receives, b.gradient_receives);
}

}  // namespace

TEST(plans_of_random_streams_are_the_same_on_every_rank_and_nobody_reads_an_old_row) {
  std::mt19937 random(3);
  Seen seen;
  const auto add = [&](const Seen& more) {
    seen.hits += more.hits, seen.pulls += more.pulls, seen.written_back += more.written_back;
    seen.dropped += more.dropped, seen.images += more.images, seen.values += more.values;
    seen.gradients += more.gradients;
  };
  for (const char* policy : {"contiguous", "random", "laia", "anneal"}) {
    for (const P2P p2p : {P2P::off, P2P::rows, P2P::gradients}) {
      for (const uint64_t capacity : {0, 1, 7, 1000}) {
        SchedulerOptions options;
        options.workers = 1 + static_cast<uint32_t>(random() % 4);
        options.capacity_rows = capacity;
        options.policy = policy;
        options.p2p = p2p;
        Scheduler one(options), other(options);
        World world(options.workers);
        for (int step = 0; step < 12; ++step) {
          const Batch batch(random, 4 + static_cast<uint32_t>(random() % 20));
          const Scheduled made = one.schedule(batch.features(), batch.samples);
          const Scheduled again = other.schedule(batch.features(), batch.samples);
          CHECK(made.rank_of_sample == again.rank_of_sample);
          for (uint32_t rank = 0; rank < options.workers; ++rank) CHECK(same(*made.plans[rank], *again.plans[rank]));
          world.carry_out(made, batch, capacity);
          if (step % 5 == 4) {
            world.flush();
            one.flushed(made.step);
            other.flushed(made.step);
          }
        }
        CHECK(p2p != P2P::off || world.seen.images + world.seen.values + world.seen.gradients == 0);
        add(world.seen);
      }
    }
  }
  for (const size_t count :
       {seen.hits, seen.pulls, seen.written_back, seen.dropped, seen.images, seen.values, seen.gradients})
    CHECK(count > 100);
}

TEST(after_a_return_caches_are_empty_and_steps_go_on_counting) {
  std::mt19937 random(4);
  SchedulerOptions options;
  options.workers = 2;
  options.capacity_rows = 100;
  Scheduler scheduler(options);
  const Batch batch(random, 16);
  scheduler.schedule(batch.features(), batch.samples);
  scheduler.clear();
  const Scheduled made = scheduler.schedule(batch.features(), batch.samples);
  CHECK(made.step == 2);
  for (const auto& plan : made.plans) CHECK(plan->hits() == 0 && plan->write_back.size() == 0);
}

TEST(an_unknown_policy_and_features_that_do_not_fit_are_refused) {
  SchedulerOptions options;
  options.policy = "by hand";
  CHECK_THROWS(BadInput, Scheduler{options});
  options.policy = "laia";
  Scheduler scheduler(options);
  const std::vector<Key> three{1, 2, 3};
  const std::vector<BatchFeature> features{{0, three, {}}};
  CHECK_THROWS(BadInput, scheduler.schedule(features, 4));
}

}  // namespace springtide::schedule_test
