// Tests pushes that run out of memory at any point: every allocation of a push is made to fail in turn. A slot then has
// either the whole push and its identity, or neither. A repeated push completes the slot.
#include <cstdlib>
#include <map>
#include <new>
#include <set>
#include <thread>

#include "base/hash.h"
#include "slots/slot_image.h"
#include "store/index/arena.h"
#include "store/store.h"
#include "testing/check.h"
#include "testing/cluster.h"

namespace {

// number of allocations in this thread until one fails; -1 means that none fails
thread_local int64_t allocations_left = -1;

bool fails_now() { return allocations_left >= 0 && allocations_left-- == 0; }

}  // namespace

void* operator new(size_t bytes) {
  if (fails_now()) throw std::bad_alloc();
  if (void* at = std::malloc(bytes == 0 ? 1 : bytes)) return at;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t align) {
  if (fails_now()) throw std::bad_alloc();
  const size_t to = static_cast<size_t>(align);
  if (void* at = std::aligned_alloc(to, (bytes + to - 1) / to * to)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, size_t, std::align_val_t) noexcept { std::free(at); }
// Arrays are replaced too, because a sanitizer's own operator new[] would not call this one and would never fail.
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete[](void* at, size_t) noexcept { std::free(at); }

namespace springtide::store_reserve_test {

namespace {

constexpr uint32_t kMany = 64;  // as few slots as a store may have: the test creates hundreds of stores
enum class Fault { allocation, arena };

// A store of one kind, which is always created in the same way, and one push into it.
struct Scene {
  virtual ~Scene() = default;
  virtual void prepare() {}
  virtual OnceStats push() { return push(1, 0); }

  Scene() : store({kMany, 7, uint64_t{64} << 20, 1}) {}

  void add_table(TableSpec table, Key keys_of_it) {
    store.declare(table);
    for (Key key = 0; key < keys_of_it; ++key) {
      tables.push_back(table.id);
      keys.push_back(key);
    }
    grads.resize(store.row_floats(tables), -1.0f);
    hyper.push_back({.table = table.id, .lr = 1.0f});
  }
  OnceStats push(uint32_t shard, uint64_t batch, std::span<const uint8_t> covers = {}, uint64_t clock = 0,
                 bool unique = true) {
    return push_some(keys.size(), shard, batch, covers, clock, unique);
  }
  // The first keys only, in two runs.
  OnceStats push_some(size_t count, uint32_t shard, uint64_t batch, std::span<const uint8_t> covers = {},
                      uint64_t clock = 0, bool unique = true) {
    const BatchRange range{0, shard, batch * 4, 4};
    const std::span some_tables = std::span(tables).first(count);
    const size_t first = count / 3, floats = store.row_floats(some_tables.first(first));
    const std::vector<RowRun> runs{{first, grads.data()}, {count - first, grads.data() + floats}};
    return store.push_once({some_tables, std::span(keys).first(count), runs}, hyper, clock, unique,
                           {{&range, 1}, covers});
  }
  std::vector<float> rows() {
    std::vector<float> out(store.row_floats(tables));
    store.pull(tables, keys, out.data());
    return out;
  }
  // State of each slot: its rows with their ages, and the batches that it has applied.
  struct State {
    std::map<std::pair<TableId, uint64_t>, std::vector<uint8_t>> rows;
    std::map<std::pair<TableId, uint64_t>, uint32_t> waiting;
    IdentitySet identities;
    bool operator==(const State&) const = default;
  };
  State state(uint32_t slot) {
    State found;
    const std::vector<uint8_t> bytes = store.export_slot(slot);
    const SlotImage image = decode(bytes);
    found.identities = image.identities;
    for (const TableImage& table : image.tables) {
      const size_t weights = table.weights.size() / std::max<size_t>(1, table.rows.size());
      const size_t floats = table.state.size() / std::max<size_t>(1, table.rows.size());
      for (size_t i = 0; i < table.rows.size(); ++i) {
        auto& row = found.rows[{table.id, table.rows[i]}];
        row.insert(row.end(), table.weights.at + i * weights, table.weights.at + (i + 1) * weights);
        row.insert(row.end(), table.state.at + i * floats, table.state.at + (i + 1) * floats);
      }
      for (size_t i = 0; i < table.waiting.size(); ++i)
        found.waiting[{table.id, table.waiting[i]}] = table.waiting_counts[i];
    }
    return found;
  }
  std::vector<State> states() {
    std::vector<State> all;
    for (uint32_t slot = 0; slot < kMany; ++slot) all.push_back(state(slot));
    return all;
  }

  Store store;
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> grads;
  std::vector<TableHyper> hyper;
};

template <class Body>
void in_new_thread(Body body) {  // a new thread, because its scratch memory is empty
  std::thread(body).join();
}

// Makes the n-th allocation of `body` fail. Returns whether an allocation failed.
template <class Body>
bool in_want(Fault fault, int64_t n, Body body) {
  bool failed = false;
  in_new_thread([&] {
    fault == Fault::arena ? Arena::full_after(static_cast<uint64_t>(n)) : void(allocations_left = n);
    try {
      body();
    } catch (const std::exception&) {
      failed = true;
    }
    allocations_left = -1;
    Arena::full_after(UINT64_MAX);
  });
  return failed;
}

template <class Kind>
void survive(Fault fault, int64_t least) {
  Kind plain;
  plain.prepare();
  const std::vector<Scene::State> before = plain.states();
  plain.push();
  const std::vector<Scene::State> after = plain.states();
  const std::vector<float> rows = plain.rows();
  const int failures = springtide::checks::failures();
  int64_t n = 0;
  for (bool failed = true; failed; ++n) {
    Kind scene;
    scene.prepare();
    failed = in_want(fault, n, [&] { scene.push(); });
    const std::vector<Scene::State> between = scene.states();
    for (uint32_t slot = 0; slot < kMany; ++slot) {
      const bool nothing = between[slot] == before[slot], all = between[slot] == after[slot];
      CHECK(failed ? nothing || all : all);
    }
    scene.push();
    CHECK(scene.states() == after);
    CHECK(scene.rows() == rows);
    CHECK(scene.store.rows() == plain.store.rows());
    CHECK(scene.push().applied == 0);
    if (springtide::checks::failures() != failures) {
      std::fprintf(stderr, "at allocation %lld\n", static_cast<long long>(n));
      return;
    }
  }
  CHECK(n > least);  // otherwise the test made no allocation fail
}

// Keys that are all new.
struct NewKeys : Scene {
  NewKeys() { add_table(spec(0, 16, OptimKind::adagrad), 1500); }
};

// Half of the rows exist.
struct SomeRows : Scene {
  SomeRows() { add_table(spec(0, 16, OptimKind::adagrad), 1500); }
  void prepare() override { push_some(750, 0, 0); }
};

// 16-bit weights, in slots with different histories.
struct HalfRows : Scene {
  HalfRows() {
    TableSpec half = spec(0, 33, OptimKind::adagrad);
    half.dtype = DType::bf16;
    add_table(half, 1000);
  }
  void prepare() override {
    std::vector<uint8_t> odd(kMany);
    for (uint32_t slot = 1; slot < kMany; slot += 2) odd[slot] = 1;
    push_some(350, 0, 0);
    push_some(450, 0, 1, odd);
    for (uint32_t slot = 5; slot < kMany; slot += 16) store.clear_slot(slot);
  }
  OnceStats push() override {
    std::vector<uint8_t> most(kMany, 1);
    for (uint32_t slot = 0; slot < kMany; slot += 3) most[slot] = 0;
    const OnceStats some = Scene::push(1, 0, most);
    std::vector<uint8_t> others(kMany);
    for (uint32_t slot = 0; slot < kMany; slot += 3) others[slot] = 1;
    OnceStats rest = Scene::push(1, 0, others, 0, false);
    rest.applied += some.applied;
    return rest;
  }
};

// Rows are evicted: those past their ttl, and the oldest of full slots. Other keys wait for admission.
struct Evictions : Scene {
  Evictions() {
    TableSpec small = spec(0, 2, OptimKind::sgd), old = spec(1, 2, OptimKind::sgd);
    small.capacity_rows = kMany * 4;
    old.ttl = 10;
    add_table(small, 1000);
    add_table(old, 500);
    TableSpec rare = spec(2, 2, OptimKind::sgd);
    rare.min_count = 2;
    add_table(rare, 500);
  }
  void prepare() override {
    store.cut();
    Scene::push(0, 0, {}, 1);
    push_some(1250, 0, 1, {}, 2);
    push_some(0, 0, 2, {}, 50);  // rows past their ttl are not freed yet
  }
  OnceStats push() override { return Scene::push(1, 0, {}, 80); }
};

}  // namespace

TEST(a_push_of_new_keys_that_lacks_memory_is_whole_or_not_there) {
  survive<NewKeys>(Fault::allocation, 20);
  survive<NewKeys>(Fault::arena, 2);
}

TEST(a_push_to_some_rows_that_lacks_memory_is_whole_or_not_there) {
  survive<SomeRows>(Fault::allocation, 20);
  survive<SomeRows>(Fault::arena, 1);
}

TEST(slots_of_different_histories_that_lack_memory_have_it_whole_or_not_at_all) {
  survive<HalfRows>(Fault::allocation, 20);
  survive<HalfRows>(Fault::arena, 1);
}

TEST(a_push_for_which_rows_must_leave_is_whole_or_not_there) { survive<Evictions>(Fault::allocation, 20); }

// Imports an image into a slot that already has rows. The image has more rows of one table than the slot's share.
TEST(an_image_that_lacks_memory_leaves_a_slot_as_it_was_or_empty_and_closed) {
  Evictions from;
  from.prepare();
  from.push();
  for (const Fault fault : {Fault::allocation, Fault::arena}) {
    for (const uint64_t since : {uint64_t{0}, uint64_t{1}}) {
      int64_t n = 0;
      for (bool failed = true; failed; ++n) {
        Evictions into;
        into.prepare();
        const uint32_t slot = 3;
        const Scene::State before = into.state(slot);
        const std::vector<uint8_t> image = from.store.export_slot(slot, since);
        failed = in_want(fault, n, [&] { into.store.import_slot(image); });
        if (failed && into.state(slot) != before) {
          CHECK(!into.store.is_open(slot));
          CHECK(into.state(slot) == Scene::State{});
        }
        into.store.import_slot(from.store.export_slot(slot));
        CHECK(into.state(slot) == from.state(slot));
      }
      CHECK(fault == Fault::arena || n > 5);
    }
  }
}

// If memory is short for one of several slots, the other slots change owners, and every slot still has one owner. Only
// the target allocates memory for rows. This holds both if it reads rows from the source's memory and if it receives
// them over a socket.
TEST(a_slot_for_which_the_target_lacks_memory_stays_and_the_others_go) {
  for (const bool hurry : {false, true}) {
    Cluster cluster(2);
    for (const auto& store : cluster.stores) store->declare(spec(0, 4000, OptimKind::sgd));
    std::vector<uint16_t> slots;
    for (uint16_t slot = 0; slot < kSlots && slots.size() < 4; ++slot) {
      if (cluster.placement.server_of_slot[slot] == 0) slots.push_back(slot);
    }
    Key key = 0;  // key of the only slot that has a row
    while (slot_of(hash_key(0, key), kSlots) != slots[1]) ++key;
    const TableId table = 0;
    const std::vector<float> row(4000, 1.0f);
    cluster.stores[0]->assign({&table, 1}, {&key, 1}, row.data());
    const HandoverOptions to{"127.0.0.1", cluster[1].port(), 1, 10, hurry};
    Arena::full_after(0);
    const HandoverOutcome outcome = cluster[0].hand_over(to, slots);
    Arena::full_after(UINT64_MAX);
    CHECK(outcome.kept == std::vector<uint16_t>{slots[1]});
    CHECK(outcome.moved.size() == 3);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      CHECK(cluster.stores[0]->is_open(slot) != cluster.stores[1]->is_open(slot));
    }
    CHECK(cluster[0].hand_over(to, slots).moved == std::vector<uint16_t>{slots[1]});
  }
}

TEST(slots_with_half_of_a_step_are_given_to_nobody) {
  Cluster cluster(2);
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  std::mt19937_64 random(4);
  const Routed routed = random_plan(cluster.placement, random, 500);
  std::vector<float> grads(routed.row_offset.back(), 1.0f);
  const Part part{&routed, grads.data()};
  PushMeta meta = sgd();
  meta.bsp = true;
  meta.step = 1;
  backend.push(std::span(&part, 1), meta)->wait();
  Arena::full_after(0);
  CHECK_THROWS(BadInput, backend.apply_step(1)->wait());
  Arena::full_after(UINT64_MAX);
  const HandoverOptions to{"127.0.0.1", cluster[1].port(), 1, 10, false};
  const std::vector<uint16_t> slots{0};
  CHECK_THROWS(BadInput, cluster[0].hand_over(to, slots));
  cluster[0].set_generation(1, 1);
  CHECK(cluster[0].hand_over(to, slots).moved == slots);
}

}  // namespace springtide::store_reserve_test
