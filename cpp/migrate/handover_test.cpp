// Slots change owners while clients push and pull. Every gradient reaches its row once, every pulled row is a value
// that the row had, and each slot has exactly one owner.
#include "migrate/handover.h"

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "migrate/slot_stream.h"
#include "slots/slot_batch.h"
#include "step/step_rows.h"
#include "testing/check.h"
#include "testing/cluster.h"
#include "wire/wire.h"

namespace springtide::handover_test {

namespace {

TableSpec counting(TableId id, uint32_t dim) {
  TableSpec spec = table(id, dim);
  spec.init = {InitKind::zeros, 0, 0};
  return spec;
}

// Servers 0 and 1 have the slots; server 2 runs but has none.
struct Three : Cluster {
  Three() : Cluster(3) {
    placement.epoch = 4;
    for (uint32_t slot = 0; slot < kSlots; ++slot) placement.server_of_slot[slot] = static_cast<uint16_t>(slot % 2);
    for (size_t s = 0; s < 3; ++s) servers_[s]->set_placement(4, placement.server_of_slot);
  }
  // Knows two servers and learns of the third from refusals.
  RemoteOptions of_two(bool shared, uint32_t rank) const {
    RemoteOptions o = options(shared, rank);
    o.hosts.pop_back();
    o.ports.pop_back();
    o.placement.servers = 2;
    o.reconnect_s = 10;
    return o;
  }
  HandoverOutcome move(uint16_t from, uint16_t to, const std::vector<uint16_t>& slots, bool hurry = false) {
    return servers_[from]->hand_over({"127.0.0.1", servers_[to]->port(), to, 10, hurry}, slots);
  }
};

PushMeta batch(uint32_t shard, uint64_t first) {
  PushMeta meta = sgd();
  meta.batches = {{0, shard, first, 1}};
  return meta;
}

std::vector<uint16_t> some_of(const std::vector<uint16_t>& slots, std::mt19937_64& random) {
  std::vector<uint16_t> some;
  for (const uint16_t slot : slots) {
    if (random() % 3 == 0) some.push_back(slot);
  }
  return some;
}

void count_while_moving(bool shared, uint64_t seed) {
  Three cluster;
  constexpr size_t kKeys = 400;
  constexpr uint32_t kWorkers = 2;
  constexpr int kSteps = 150;  // minimum number of steps; the test continues while few slots have moved
  const std::vector<TableSpec> tables = {counting(0, 4), counting(1, 9)};
  RemoteBackend first(cluster.of_two(shared, 9));
  first.declare(tables);
  std::atomic<uint32_t> working{kWorkers};
  std::atomic<uint64_t> wrong{0}, moved{0};
  std::array<int, kWorkers> trained{};
  const auto work = [&](uint32_t rank) {
    RemoteBackend backend(cluster.of_two(shared, rank));
    backend.declare(tables);
    std::mt19937_64 random(seed + rank);
    for (int step = 0; step < kSteps || (moved <= kSlots && step < 100 * kSteps); ++step) {
      std::vector<std::pair<TableId, Key>> pairs;  // each worker has its own keys, so that it knows their counts
      for (Key key = 0; key < static_cast<Key>(kKeys); ++key) pairs.emplace_back(key % 2, key * kWorkers + rank);
      // The placement may be outdated already, because slots move at any moment.
      const Routed routed = plan(*backend.placement(), pairs);
      for (const float value : pulled(backend, routed)) wrong += value == static_cast<float>(step) ? 0 : 1;
      const std::vector<float> minus(routed.row_offset.back(), -1.0f);
      const Part part{&routed, const_cast<float*>(minus.data())};
      backend.push(std::span(&part, 1), batch(rank, static_cast<uint64_t>(step)))->wait();
      if (random() % 4 == 0) {  // the batch is pushed twice; it must be skipped on any server that has the slot now
        backend.push(std::span(&part, 1), batch(rank, static_cast<uint64_t>(step)))->wait();
      }
      trained[rank] = step + 1;
    }
    --working;
  };
  std::vector<std::thread> workers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) workers.emplace_back(work, rank);
  std::mt19937_64 random(seed);
  while (working != 0) {
    const auto from = static_cast<uint16_t>(random() % 3), to = static_cast<uint16_t>((from + 1 + random() % 2) % 3);
    const HandoverOutcome outcome = cluster.move(from, to, some_of(cluster[from].owned(), random), random() % 3 == 0);
    CHECK(outcome.why.empty());
    CHECK(outcome.kept.empty() && outcome.in_doubt.empty());
    moved += outcome.moved.size();
  }
  for (std::thread& worker : workers) worker.join();
  CHECK(moved > kSlots);
  CHECK(wrong == 0);
  std::vector<int> owners(kSlots, 0);
  for (size_t s = 0; s < 3; ++s) {
    for (const uint16_t slot : cluster[s].owned()) ++owners[slot];
  }
  CHECK(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
  uint64_t rows = 0, exact = 0;
  for (size_t s = 0; s < 3; ++s) {
    for (const uint16_t slot : cluster[s].owned()) {
      for (const TableId id : {TableId{0}, TableId{1}}) {
        std::vector<Key> keys;
        std::vector<float> values;
        cluster.stores[s]->scan(id, slot, keys, values);
        rows += keys.size();
        for (size_t i = 0; i < values.size(); ++i) {
          const Key key = keys[i / (values.size() / keys.size())];
          exact += values[i] == static_cast<float>(trained[static_cast<size_t>(key) % kWorkers]) ? 1 : 0;
        }
      }
    }
  }
  CHECK(rows == kKeys * kWorkers);
  CHECK(exact == kWorkers * (kKeys / 2) * (4 + 9));
}

}  // namespace

TEST(counts_are_exact_while_slots_go_back_and_forth_over_sockets) { count_while_moving(false, 11); }
TEST(counts_are_exact_while_slots_go_back_and_forth_with_shared_memory) { count_while_moving(true, 12); }

void move_all(bool hurried) {
  Three cluster;
  RemoteBackend backend(cluster.of_two(false, 0));
  declare(backend);
  std::mt19937_64 random(3);
  const Routed routed = random_plan(cluster.placement, random, 2000);
  std::vector<float> grads(routed.row_offset.back());
  for (float& value : grads) value = static_cast<float>(random() % 1000) / 500 - 1;
  const Part part{&routed, grads.data()};
  backend.push(std::span(&part, 1), batch(1, 0))->wait();
  const std::vector<float> before = pulled(backend, routed);
  const IdentitySet history = cluster.stores[0]->applied(0);
  const HandoverOutcome outcome = cluster.move(0, 2, cluster[0].owned(), hurried);
  CHECK(outcome.moved.size() == kSlots / 2);
  CHECK(cluster[0].owned().empty());
  CHECK(cluster.stores[0]->rows() == 0);
  CHECK(pulled(backend, routed) == before);
  CHECK(backend.placement()->server_of_slot[0] == 2);
  CHECK(cluster.stores[2]->applied(0) == history);
  backend.assign(std::span(&part, 1), false);  // assignments also follow slots that move
  CHECK(pulled(backend, routed) == grads);
}

TEST(a_moved_slot_is_the_same_bit_for_bit_and_its_old_server_names_the_new_one) { move_all(false); }
TEST(a_slot_that_is_moved_in_a_hurry_is_the_same_too) { move_all(true); }

// Dense parameters are pulled again while their push is in flight. If the push is refused, it is sent again with its
// gradients, not with the values that have arrived since.
void move_under_a_push(bool shared) {
  Three cluster;
  const auto backend = std::make_shared<RemoteBackend>(cluster.options(shared));
  backend->declare(std::vector{counting(0, 4), counting(1, 9)});
  const auto source = std::make_shared<RowSource>(backend);
  std::vector<Key> keys(300);
  std::iota(keys.begin(), keys.end(), Key{0});
  DenseRows dense(*source, std::vector<TableId>(keys.size(), 0), keys, std::vector<uint32_t>(keys.size(), 4));
  const auto push = [&](uint64_t first) {
    std::ranges::fill(dense.set()->grads(), -1.0f);
    const Part part = dense.push_part();
    return backend->push(std::span(&part, 1), batch(1, first));
  };
  const auto pull = [&] {
    RowSet::pull(std::span(&dense.set(), 1), {});
    dense.set()->wait();
    return std::vector<float>(dense.set()->rows().begin(), dense.set()->rows().end());
  };
  for (uint64_t first = 0; first < 5; ++first) push(first)->wait();
  CHECK(pull() == std::vector<float>(4 * keys.size(), 5.0f));

  CHECK(cluster.move(0, 2, cluster[0].owned()).moved.size() == kSlots / 2);
  const auto under_way = push(5);  // to the old owner
  Placement moved = cluster.placement;
  moved.epoch = 5;
  std::ranges::replace(moved.server_of_slot, uint16_t{0}, uint16_t{2});
  backend->reroute(moved, {{uint16_t{2}, "127.0.0.1:" + std::to_string(cluster[2].port())}});
  pull();  // this goes to the new owner
  under_way->wait();
  CHECK(pull() == std::vector<float>(4 * keys.size(), 6.0f));
}

TEST(a_push_that_is_refused_is_sent_again_as_it_was_though_its_rows_were_pulled_since) { move_under_a_push(false); }
TEST(a_push_from_shared_memory_is_sent_again_as_it_was_too) { move_under_a_push(true); }

TEST(a_server_gives_only_what_is_its_own_and_takes_only_what_it_has_not) {
  Three cluster;
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  const HandoverOutcome foreign = cluster.move(0, 2, {1});
  CHECK(foreign.moved.empty() && !foreign.why.empty());
  CHECK(cluster[1].owned().size() == kSlots / 2);
  CHECK_THROWS(BadInput, cluster[0].hand_over({"127.0.0.1", cluster[0].port(), 0, 1}, {}));
  const HandoverOutcome nowhere = cluster[0].hand_over({"127.0.0.1", 1, 2, 0.2}, std::vector<uint16_t>{0});
  CHECK(nowhere.moved.empty() && nowhere.in_doubt.empty() && !nowhere.why.empty());
  const HandoverOutcome wrong = cluster[0].hand_over({"127.0.0.1", cluster[1].port(), 2, 1}, std::vector<uint16_t>{0});
  CHECK(wrong.moved.empty() && wrong.why.find("says it is server 1") != std::string::npos);
  CHECK_THROWS(BadInput, cluster.stores[1]->import_closed(1, cluster.stores[0]->export_slot(1), true));
  CHECK(cluster[0].owned().size() == kSlots / 2);
}

TEST(a_target_with_other_tables_refuses_and_the_slot_is_served_as_before) {
  Three cluster;
  RemoteBackend backend(cluster.of_two(false, 0));
  declare(backend);
  cluster.stores[2]->declare(table(0, 5));
  const Routed routed = plan(cluster.placement, {{0, 1}, {0, 2}, {0, 3}});
  for (const bool hurried : {false, true}) {
    const HandoverOutcome outcome = cluster.move(0, 2, cluster[0].owned(), hurried);
    CHECK(outcome.moved.empty() && outcome.kept.size() == kSlots / 2);
    CHECK(outcome.why.find("dim") != std::string::npos);
  }
  CHECK(pulled(backend, routed).size() == 12);
}

// Sends an image of slot 0 as a source does while it serves. Returns the target's reply.
int takes(SlotTarget& over, std::span<const uint8_t> image, uint64_t transfer = 0) {
  FrameHeader answer;
  over.send(Kind::take, 0, image, transfer);
  return over.receive(answer).empty() ? static_cast<int>(answer.step) : -1;
}

// Transfers the ownership of slot 0 to the target. Returns the number of slots that the target accepted.
size_t owns_all(SlotTarget& over, std::span<const uint8_t> image, uint64_t transfer = 0) {
  BatchWriter batch(false);
  batch.begin(0, transfer);
  batch.add(image);
  batch.end();
  FrameHeader header;
  std::vector<uint8_t> body;
  over.send(Kind::own_all, 0, batch.bytes());
  CHECK(over.receive(header, body).empty());
  return decode_answer(body).taken.size();
}

// The source may give up a connection after its frame has arrived, and before the reply to it.
TEST(a_slot_that_is_sent_again_over_another_connection_is_reported_as_taken) {
  Three cluster;
  for (const auto& store : cluster.stores) store->declare(table(0, 4));
  ServerOptions options;
  options.secret = kSecret;
  ServerState source(*cluster.stores[0], options);
  const HandoverOptions to{"127.0.0.1", cluster[2].port(), 2, 5};
  SlotTarget first(source, to), second(source, to);
  const std::vector<uint8_t> image = cluster.stores[0]->export_slot(0);
  CHECK(takes(second, image) == 0);
  CHECK(owns_all(first, image) == 1);
  CHECK(owns_all(second, image) == 1);
  CHECK(takes(second, image) == 1);
  CHECK(cluster[2].owned() == std::vector<uint16_t>{0});
}

// The source got no reply and offers the slot again. It does not know that the slot has moved on to a third server.
TEST(a_transfer_that_was_accepted_and_passed_on_is_not_accepted_again) {
  Three cluster;
  for (const auto& store : cluster.stores) store->declare(table(0, 4));
  ServerOptions options;
  options.secret = kSecret;
  ServerState source(*cluster.stores[0], options);
  const HandoverOptions to{"127.0.0.1", cluster[2].port(), 2, 5};
  SlotTarget first(source, to), second(source, to);
  const std::vector<uint8_t> image = cluster.stores[0]->export_slot(0);
  CHECK(owns_all(first, image, 7) == 1);
  CHECK(cluster.move(2, 1, {0}).moved == std::vector<uint16_t>{0});
  CHECK(owns_all(second, image, 7) == 1);  // the server had accepted this transfer, and says so
  CHECK(takes(first, image, 7) == 1);
  cluster[2].expect_anew();
  CHECK(owns_all(first, image, 7) == 1);  // even after expect_anew(), which here refuses only new transfers
  CHECK(cluster[2].owned().empty());
  CHECK(owns_all(first, image, 8) == 0);
  SlotTarget third(source, to);
  // A transfer that was refused stays refused, because the source may have opened the slot again.
  CHECK(owns_all(third, image, 8) == 0);
  CHECK(owns_all(third, image, 9) == 1);  // a new transfer
  CHECK(cluster[2].owned() == std::vector<uint16_t>{0});
}

TEST(a_draining_server_accepts_no_slots_and_says_what_it_has) {
  Three cluster;
  for (const auto& store : cluster.stores) store->declare(table(0, 4));
  CHECK(cluster.move(0, 2, {0}).moved == std::vector<uint16_t>{0});
  cluster[2].take_no_more(true);
  for (const bool hurried : {false, true}) {
    const HandoverOutcome refused = cluster.move(0, 2, {2}, hurried);
    CHECK(refused.moved.empty() && refused.in_doubt.empty());
    CHECK(refused.why.find("draining") != std::string::npos);
  }
  CHECK(cluster[0].owned().size() == kSlots / 2 - 1);
  CHECK(cluster[2].owned() == std::vector<uint16_t>{0});
  cluster[2].take_no_more(false);
  CHECK(cluster.move(0, 2, {2}).moved == std::vector<uint16_t>{2});
}

TEST(a_slot_that_changes_much_while_its_image_travels_is_complete_where_it_arrives) {
  Three cluster;
  RemoteBackend backend(cluster.of_two(false, 0));
  const std::vector<TableSpec> tables = {counting(0, 4), counting(1, 9)};
  backend.declare(tables);
  std::vector<std::pair<TableId, Key>> pairs;
  for (Key key = 0; key < 60000; ++key) pairs.emplace_back(0, key);  // about 900 rows per slot
  const Routed routed = plan(cluster.placement, pairs);
  const std::vector<float> minus(routed.row_offset.back(), -1.0f);
  const Part part{&routed, const_cast<float*>(minus.data())};
  std::atomic<bool> over = false;
  uint64_t pushes = 0;
  std::thread pushing([&] {
    for (; !over || pushes < 3; ++pushes) backend.push(std::span(&part, 1), batch(0, pushes))->wait();
  });
  for (int round = 0; round < 4; ++round) {
    const uint16_t from = round % 2 == 0 ? 0 : 2, to = round % 2 == 0 ? 2 : 0;
    const HandoverOutcome outcome = cluster.move(from, to, cluster[from].owned());
    CHECK(outcome.moved.size() == kSlots / 2 && outcome.why.empty());
  }
  over = true;
  pushing.join();
  const std::vector<float> rows = pulled(backend, routed);
  CHECK(std::all_of(rows.begin(), rows.end(), [&](float x) { return x == static_cast<float>(pushes); }));
}

TEST(a_refusal_that_makes_no_sense_is_told_from_one_that_does) {
  const Refusal refusal{{1, 2, 9}, {0, kNoOwner, 3}, {{3, "10.0.0.1:7700"}}};
  const std::vector<uint8_t> body = encode(refusal);
  const Refusal back = decode_refusal(body);
  CHECK(back.slots == refusal.slots && back.owners == refusal.owners && back.addresses == refusal.addresses);
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    CHECK_THROWS(PeerLost, decode_refusal(std::span(body).first(bytes)));
  }
  std::vector<uint8_t> huge(8, 0xff);
  CHECK_THROWS(PeerLost, decode_refusal(huge));
}

}  // namespace springtide::handover_test
