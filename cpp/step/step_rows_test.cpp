// Tests the rows of a step against plain loops: dedup, routing to servers, pooling, gradients, merging, errors.
#include "step/step_rows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "base/hash.h"
#include "client/local_backend.h"
#include "testing/check.h"

namespace springtide::step_rows_test {

namespace {

constexpr uint32_t kSlots = 256;

struct World {
  explicit World(uint16_t servers) {
    StoreOptions options;
    options.slots = kSlots;
    options.seed = 11;
    backend = std::make_shared<LocalBackend>(options, servers);
    std::vector<TableSpec> specs(3);
    for (TableId t = 0; t < 3; ++t) {
      specs[t].id = t;
      specs[t].name = "t" + std::to_string(t);
      specs[t].dim = 4 * (t + 1);
      specs[t].init = {InitKind::uniform, -1, 1};
    }
    backend->declare(specs);
    source = std::make_shared<RowSource>(backend, 2);
  }
  std::shared_ptr<LocalBackend> backend;
  std::shared_ptr<RowSource> source;
};

FeatureSpec feature(TableId table, uint16_t group) {
  FeatureSpec spec;
  spec.name = "f" + std::to_string(table);
  spec.table = table;
  spec.dim = 4 * (table + 1u);
  spec.group = group;
  return spec;
}

std::shared_ptr<StepPlan> plan_of(std::vector<FeatureSpec> features) {
  return std::make_shared<StepPlan>(std::move(features));
}

std::vector<Key> random_keys(size_t count, uint64_t range, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Key> keys(count);
  for (Key& key : keys) key = static_cast<Key>(random() % range) - static_cast<Key>(range / 2);
  return keys;
}

void pull(StepRows& step) {
  const std::vector<std::shared_ptr<RowSet>> sets{step.set()};
  RowSet::pull(sets, {});
}

// A backend whose replies come when the test says so.
struct SlowBackend final : LocalBackend {
  using LocalBackend::LocalBackend;
  struct Reply final : Pending {
    explicit Reply(SlowBackend& from) : backend(from) {}
    void wait() override { ++backend.waits; }
    bool done() override { return backend.replied; }
    SlowBackend& backend;
  };
  std::unique_ptr<Pending> pull(std::span<const Part>, const PullMeta&) override {
    return std::make_unique<Reply>(*this);
  }
  bool replied = false;
  int waits = 0;
};

}  // namespace

TEST(unique_keys_are_routed_by_server_and_slot) {
  World world(3);
  const std::vector<Key> keys = random_keys(1000, 300, 1);
  StepRows step(*world.source, plan_of({feature(0, 0), feature(1, 1)}),
                std::vector<FeatureIds>{{keys.data(), 500, 1}, {keys.data() + 1, 250, 2}});
  const Routed& routed = step.set()->routed();
  CHECK(routed.keys.size() == step.unique());
  CHECK(routed.server_begin.size() == 4 && routed.server_begin.back() == routed.keys.size());
  std::map<std::pair<TableId, Key>, int> seen;
  for (size_t s = 0; s < 3; ++s) {
    uint32_t last = 0;
    for (uint32_t r = routed.server_begin[s]; r < routed.server_begin[s + 1]; ++r) {
      const uint32_t slot = slot_of(hash_key(routed.tables[r], routed.keys[r]), kSlots);
      CHECK(world.backend->placement()->server_of_slot[slot] == s);
      CHECK(slot >= last);
      last = slot;
      CHECK(routed.row_offset[r + 1] - routed.row_offset[r] == 4u * (routed.tables[r] + 1u));
      seen[{routed.tables[r], routed.keys[r]}] += 1;
    }
  }
  for (const auto& [key, times] : seen) CHECK(times == 1);
  for (int i = 0; i < 500; ++i) CHECK(seen.count({0, keys[i]}) == 1);
  for (int i = 0; i < 250; ++i) CHECK(seen.count({1, keys[1 + 2 * i]}) == 1);
}

TEST(sums_of_gradients_are_the_same_bits_for_any_number_of_servers) {
  const std::vector<Key> keys = random_keys(2000, 150, 2);
  std::vector<float> grad(2000 * 8);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& g : grad) g = normal(random);
  std::map<Key, std::vector<float>> wanted;
  for (size_t i = 0; i < keys.size(); ++i) {
    auto& sum = wanted.try_emplace(keys[i], 8, 0.0f).first->second;
    for (int d = 0; d < 8; ++d) sum[d] += grad[i * 8 + d];
  }
  for (uint16_t servers : {1, 2, 5}) {
    World world(servers);
    StepRows step(*world.source, plan_of({feature(1, 0)}), std::vector<FeatureIds>{{keys.data(), 2000, 1}});
    pull(step);
    step.accumulate(std::vector<GradItem>{{0, {Pooling::none, 2000}, grad.data(), 8}});
    const Part part = step.push_part();
    CHECK(part.routed->keys.size() == wanted.size());
    for (size_t r = 0; r < part.routed->keys.size(); ++r)
      CHECK(std::equal(wanted[part.routed->keys[r]].begin(), wanted[part.routed->keys[r]].end(),
                       part.rows + part.routed->row_offset[r]));
  }
}

TEST(groups_lie_together_whatever_the_servers) {
  World world(2);
  const std::vector<Key> keys = random_keys(60, 40, 3);
  StepRows step(*world.source, plan_of({feature(0, 0), feature(2, 1), feature(0, 0)}),
                std::vector<FeatureIds>{{keys.data(), 20, 1}, {keys.data() + 20, 20, 1}, {keys.data() + 40, 20, 1}});
  pull(step);
  std::vector<float> out(20 * 12);
  step.pool(std::vector<PoolItem>{{1, {Pooling::sum, 20}, out.data(), 12}});
  const auto begin = step.set()->group_begin();
  CHECK(begin.size() == 3 && begin[2] == step.set()->floats());
  for (int i = 0; i < 20; ++i) {
    const auto rows = step.set()->rows().subspan(begin[1]);
    const auto found = std::search(rows.begin(), rows.end(), out.begin() + i * 12, out.begin() + i * 12 + 12);
    CHECK(found != rows.end() && (found - rows.begin()) % 12 == 0);
  }
}

TEST(two_backward_passes_merge_into_one_set) {
  World world(2);
  const std::vector<Key> first{1, 2, 3}, second{3, 4};
  const auto plan = plan_of({feature(0, 0)});
  StepRows one(*world.source, plan, std::vector<FeatureIds>{{first.data(), 3, 1}});
  StepRows two(*world.source, plan, std::vector<FeatureIds>{{second.data(), 2, 1}});
  const std::vector<float> ones(12, 1.0f);
  for (StepRows* step : {&one, &two}) {
    pull(*step);
    step->accumulate(std::vector<GradItem>{{0, {Pooling::none, static_cast<int64_t>(step->unique())}, ones.data(), 4}});
  }
  const std::vector<StepRows*> parts{&one, &two};
  const std::vector<std::vector<int>> groups{{0}, {0}};
  StepRows both(*world.source, plan, parts, groups);
  const Part part = both.push_part();
  CHECK(part.routed->keys.size() == 4);
  for (size_t r = 0; r < 4; ++r)
    CHECK(part.rows[part.routed->row_offset[r]] == (part.routed->keys[r] == 3 ? 2.0f : 1.0f));
  CHECK(!one.set()->touched(0) && one.set()->grads()[0] == 0);
}

std::vector<Key> pushed(StepRows& step) {
  const Part part = step.push_part();
  std::vector<Key> keys(part.routed->keys.begin(), part.routed->keys.end());
  CHECK(part.routed->row_offset.size() == keys.size() + 1);
  std::sort(keys.begin(), keys.end());
  return keys;
}

FeatureSpec padded(Key padding, uint16_t group = 0) {
  FeatureSpec spec = feature(0, group);
  spec.has_padding = spec.pull_padding = true;
  spec.padding = padding;
  return spec;
}

TEST(a_padding_row_is_pushed_only_if_it_is_trained) {
  World world(2);
  const std::vector<Key> first{0, 7, 0, 9}, second{7, 9, 7, 7}, padding{0, 0};
  const auto step_of = [&](std::vector<FeatureSpec> specs, std::span<const FeatureIds> ids) {
    auto step = std::make_unique<StepRows>(*world.source, plan_of(std::move(specs)), ids);
    pull(*step);
    step->set()->touch(0);
    return step;
  };
  const std::vector<FeatureIds> both{{first.data(), 4}, {second.data(), 4}}, one{{padding.data(), 2}};
  CHECK(pushed(*step_of({padded(0), padded(0)}, both)) == (std::vector<Key>{7, 9}));
  CHECK(pushed(*step_of({padded(0), padded(7)}, both)) == (std::vector<Key>{7, 9}));  // the first feature trains 7
  CHECK(pushed(*step_of({padded(9), feature(0, 0)}, both)) == (std::vector<Key>{0, 7, 9}));
  CHECK(pushed(*step_of({padded(0)}, one)).empty());

  const auto given = step_of({padded(0)}, one);
  given->set()->grads()[1] = 2;  // such as the gradient of a penalty on the weights
  CHECK(pushed(*given) == (std::vector<Key>{0}));

  const auto reads = step_of({padded(0)}, one), trains = step_of({feature(0, 0)}, one);
  for (const bool trained : {false, true}) {
    std::vector<StepRows*> parts{reads.get(), trained ? trains.get() : reads.get()};
    const std::vector<std::vector<int>> groups{{0}, {0}};
    StepRows merged(*world.source, plan_of({padded(0)}), parts, groups);
    CHECK(pushed(merged) == (trained ? std::vector<Key>{0} : std::vector<Key>{}));
  }
}

TEST(ids_and_bags_that_do_not_fit_are_refused) {
  World world(1);
  FeatureSpec bounded = feature(0, 0);
  bounded.rows = 5;
  const std::vector<Key> keys{0, 4, 5}, negative{-1};
  CHECK_THROWS(BadInput, StepRows(*world.source, plan_of({bounded}), std::vector<FeatureIds>{{keys.data(), 3, 1}}));
  CHECK_THROWS(BadInput, StepRows(*world.source, plan_of({bounded}), std::vector<FeatureIds>{{negative.data(), 1, 1}}));
  CHECK_THROWS(BadInput, StepRows(*world.source, plan_of({bounded}), std::vector<FeatureIds>{}));
  CHECK_THROWS(BadInput, plan_of({feature(0, 0), feature(0, 1)}));
  StepRows step(*world.source, plan_of({bounded}), std::vector<FeatureIds>{{keys.data(), 2, 1}});
  pull(step);
  std::vector<float> out(64);
  const std::vector<int64_t> late{0, 3}, falling{0, 2, 1};
  CHECK_THROWS(BadInput, step.pool(std::vector<PoolItem>{{0, {Pooling::sum, 2, 0, late.data()}, out.data(), 4}}));
  CHECK_THROWS(BadInput, step.pool(std::vector<PoolItem>{{0, {Pooling::sum, 3, 0, falling.data()}, out.data(), 4}}));
  CHECK_THROWS(BadInput, step.pool(std::vector<PoolItem>{{0, {Pooling::sum, 2, 3}, out.data(), 4}}));
  CHECK_THROWS(BadInput, step.pool(std::vector<PoolItem>{{1, {Pooling::sum, 2}, out.data(), 4}}));
}

TEST(a_gradient_that_is_not_finite_is_named_and_not_pushed) {
  World world(1);
  const std::vector<Key> keys{7, 8};
  StepRows step(*world.source, plan_of({feature(0, 0)}), std::vector<FeatureIds>{{keys.data(), 2, 1}});
  pull(step);
  std::vector<float> grad(8, 1.0f);
  grad[5] = -INFINITY;
  step.accumulate(std::vector<GradItem>{{0, {Pooling::none, 2}, grad.data(), 4}});
  CHECK_THROWS(NonFinite, step.push_part());
  step.set()->grads()[0] = step.set()->grads()[1] = step.set()->grads()[2] = step.set()->grads()[3] = 0;
  for (float& g : step.set()->grads()) g = std::isfinite(g) ? g : 0.0f;
  CHECK(step.push_part().routed->keys.size() == 2);  // corrected before the push, so the push is accepted
}

TEST(rows_that_are_dropped_while_they_are_pulled_are_not_waited_for_and_keep_their_memory) {
  StoreOptions options;
  options.slots = kSlots;
  const auto backend = std::make_shared<SlowBackend>(options, uint16_t{1});
  const auto source = std::make_shared<RowSource>(backend);
  const auto plan = plan_of({feature(0, 0)});
  const std::vector<Key> keys{1, 2, 3};
  const std::vector<FeatureIds> ids{{keys.data(), 3, 1}};
  const float* written = nullptr;
  {
    StepRows dropped(*source, plan, ids);
    pull(dropped);
    written = dropped.set()->rows().data();
  }
  CHECK(backend->waits == 0);
  const StepRows before_the_reply(*source, plan, ids);
  CHECK(before_the_reply.set()->rows().data() != written);
  backend->replied = true;
  const StepRows after_the_reply(*source, plan, ids);
  CHECK(after_the_reply.set()->rows().data() == written);
}

TEST(memory_is_used_again_and_threads_may_gather_at_once) {
  World world(2);
  const auto plan = plan_of({feature(0, 0), feature(1, 1)});
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      for (uint32_t round = 0; round < 50; ++round) {
        const std::vector<Key> keys = random_keys(200, 80, 100 * seed + round);
        StepRows step(*world.source, plan, std::vector<FeatureIds>{{keys.data(), 100, 1}, {keys.data() + 100, 100, 1}});
        pull(step);
        std::vector<float> out(100 * 8);
        step.pool(std::vector<PoolItem>{{1, {Pooling::sum, 100}, out.data(), 8}});
        DenseRows row(*world.source, std::vector<TableId>{1}, std::vector<Key>{keys[150]}, std::vector<uint32_t>{8});
        const std::vector<std::shared_ptr<RowSet>> sets{row.set()};
        RowSet::pull(sets, {});
        row.set()->wait();
        CHECK(std::equal(out.begin() + 50 * 8, out.begin() + 51 * 8, row.set()->rows().begin()));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace springtide::step_rows_test
