// The scheduler on random streams: plans are carried out on caches and servers that know of each row how
// often it was trained. Nobody reads a row that lacks a training, every key of a sample is in one list of its
// rank's plan, and two schedulers that see the same batches come to the same plans.
#include "schedule.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "check.h"

using namespace springtide;

namespace {

using Row = std::pair<TableId, Key>;
using Versions = std::map<Row, uint64_t>;

struct Batch {
  uint32_t samples;
  std::vector<std::vector<Key>> ids;  // by table; two tables have an id a sample, the third has bags
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
  std::vector<BatchFeature> features() const {
    return {{0, ids[0], {}}, {1, ids[1], {}}, {2, ids[2], offsets}};
  }
};

std::vector<Row> rows_of(const PlanKeys& keys) {
  std::vector<Row> rows;
  for (size_t i = 0; i < keys.size(); ++i) rows.emplace_back(keys.tables[i], keys.keys[i]);
  return rows;
}

// Caches and servers, and how often each row was trained.
struct World {
  std::vector<Versions> caches;
  Versions servers, latest;

  explicit World(uint32_t workers) : caches(workers) {}

  void carry_out(const Scheduled& made, const Batch& batch, uint64_t capacity) {
    std::map<std::pair<uint32_t, Row>, uint64_t> images, values;  // on their way, by receiver
    for (const auto& plan : made.plans) {
      Versions& cache = caches[plan->rank];
      for (const Row& row : rows_of(plan->write_back)) CHECK(cache.contains(row)), servers[row] = cache[row];
      for (const PeerRows& to : plan->sends)
        for (const Row& row : rows_of(to.rows)) images[{to.peer, row}] = cache.at(row);
      for (const PeerRows& to : plan->value_sends)
        for (const Row& row : rows_of(to.rows)) values[{to.peer, row}] = cache.at(row);
    }
    std::set<Row> trained, kept;
    for (const auto& plan : made.plans) read(*plan, batch, made, images, values, trained, kept);
    for (const Row& row : trained) ++latest[row];
    for (const Row& row : trained)
      if (!kept.contains(row)) servers[row] = latest[row];
    for (const auto& plan : made.plans) {
      for (const PlanKeys* held : {&plan->hold_hit, &plan->hold_pull})
        for (const Row& row : rows_of(*held)) caches[plan->rank][row] = latest[row];
      for (const PeerRows& from : plan->receives)
        for (const Row& row : rows_of(from.rows)) caches[plan->rank][row] = latest[row];
      CHECK(caches[plan->rank].size() <= capacity);
    }
  }

  void read(const CachePlan& plan, const Batch& batch, const Scheduled& made, const auto& images,
            const auto& values, std::set<Row>& trained, std::set<Row>& kept) {
    Versions& cache = caches[plan.rank];
    std::vector<Row> named;
    const auto see = [&](const Row& row, uint64_t version, bool keeps) {
      CHECK(version == latest[row]);
      named.push_back(row);
      if (keeps) CHECK(kept.insert(row).second);
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
    trained.insert(wanted.begin(), wanted.end());
  }

  void flush() {
    for (const Versions& cache : caches)
      for (const auto& [row, version] : cache) servers[row] = version;
  }
};

bool same(const CachePlan& a, const CachePlan& b) {
  const auto keys = [](const PlanKeys& one, const PlanKeys& other) {
    return one.tables == other.tables && one.keys == other.keys;
  };
  return keys(a.write_back, b.write_back) && keys(a.drop, b.drop) && keys(a.hold_hit, b.hold_hit) &&
         keys(a.hold_pull, b.hold_pull) && keys(a.pass_hit, b.pass_hit) && keys(a.pass_pull, b.pass_pull) &&
         a.sent() == b.sent() && a.received() == b.received();
}

}  // namespace

TEST(plans_of_random_streams_are_the_same_on_every_rank_and_nobody_reads_an_old_row) {
  std::mt19937 random(3);
  for (const char* policy : {"contiguous", "random", "laia", "anneal"}) {
    for (const P2P p2p : {P2P::off, P2P::rows, P2P::gradients}) {
      for (const uint64_t capacity : {0, 1, 7, 1000}) {
        SchedulerOptions options;
        options.workers = 1 + static_cast<uint32_t>(random() % 4);
        options.capacity_rows = capacity;
        options.policy = policy;
        options.p2p = p2p;
        options.order = random() % 2 ? EvictOrder::lfu : EvictOrder::lru;
        Scheduler one(options), other(options);
        World world(options.workers);
        for (int step = 0; step < 12; ++step) {
          const Batch batch(random, 4 + static_cast<uint32_t>(random() % 20));
          const Scheduled made = one.schedule(batch.features(), batch.samples);
          const Scheduled again = other.schedule(batch.features(), batch.samples);
          CHECK(made.rank_of_sample == again.rank_of_sample);
          for (uint32_t rank = 0; rank < options.workers; ++rank)
            CHECK(same(*made.plans[rank], *again.plans[rank]));
          world.carry_out(made, batch, capacity);
          if (step % 5 == 4) {
            world.flush();
            one.flushed(made.step);
            other.flushed(made.step);
          }
        }
      }
    }
  }
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

CHECK_MAIN
