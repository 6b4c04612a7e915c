// A caller that repeatedly sends and waits immediately starts to read its replies itself. Even then, it always gets its
// rows or an error, and replies that no caller waits for are read too.
#include <random>
#include <thread>

#include "testing/check.h"
#include "testing/cluster.h"
#include "testing/proxy.h"

namespace springtide::peer_receive_test {

namespace {

// This is long enough for the receiving thread to leave replies to the caller, even on a busy machine.
constexpr auto kUntilPrompt = std::chrono::seconds(30);

// Sends and waits until the caller reads its replies itself.
void become_prompt(RemoteBackend& backend, const Routed& routed, const std::vector<float>& wanted) {
  const uint64_t before = backend.stats().read_by_caller;
  const auto until = Clock::now() + kUntilPrompt;
  while (Clock::now() < until && backend.stats().read_by_caller < before + 3) CHECK(pulled(backend, routed) == wanted);
  CHECK(backend.stats().read_by_caller > before);
}

}  // namespace

TEST(a_caller_that_asks_and_waits_at_once_reads_its_replies_itself) {
  for (const bool shared : {false, true}) {
    Cluster cluster(1);
    RemoteBackend backend(cluster.options(shared));
    declare(backend);
    std::mt19937_64 random(1);
    const Routed routed = random_plan(cluster.placement, random, 20000);
    become_prompt(backend, routed, pulled(backend, routed));
  }
}

TEST(a_connection_that_breaks_under_such_a_caller_is_opened_again) {
  Cluster cluster(1);
  Proxy proxy(cluster[0].port());
  RemoteOptions options = cluster.options(false);
  options.ports[0] = proxy.port();
  RemoteBackend backend(options);
  declare(backend);
  std::mt19937_64 random(2);
  const Routed routed = random_plan(cluster.placement, random, 4000);
  const std::vector<float> wanted = pulled(backend, routed);
  for (int round = 0; round < 12; ++round) {
    become_prompt(backend, routed, wanted);
    proxy.cut_replies_after(static_cast<int64_t>(random() % 150000));
    for (int i = 0; i < 4; ++i) CHECK(pulled(backend, routed) == wanted);
  }
  CHECK(backend.stats().reconnects > 0);
}

TEST(a_reply_that_nobody_waits_for_is_taken_by_the_thread) {
  Cluster cluster(1);
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  std::mt19937_64 random(3);
  const Routed routed = random_plan(cluster.placement, random, 20000);
  const std::vector<float> wanted = pulled(backend, routed);
  become_prompt(backend, routed, wanted);
  std::vector<float> rows(wanted.size());
  const Part part{&routed, rows.data()};
  const auto pending = backend.pull(std::span(&part, 1), {0});
  const auto until = Clock::now() + std::chrono::seconds(10);
  while (!pending->done() && Clock::now() < until) std::this_thread::yield();
  CHECK(pending->done());
  pending->wait();
  CHECK(rows == wanted);
}

TEST(such_a_caller_is_told_when_its_reply_is_overdue) {
  Cluster cluster(1);
  Proxy proxy(cluster[0].port());
  RemoteOptions options = cluster.options(false);
  options.ports[0] = proxy.port();
  options.request_timeout_s = 2;
  RemoteBackend backend(options);
  declare(backend);
  std::mt19937_64 random(4);
  const Routed routed = random_plan(cluster.placement, random, 4000);
  become_prompt(backend, routed, pulled(backend, routed));
  proxy.hold_replies();
  try {
    pulled(backend, routed);
    CHECK(false);
  } catch (const PeerLost& e) {
    CHECK(std::string(e.what()).find("has not answered a pull") != std::string::npos);
  }
}

TEST(two_callers_of_one_connection_each_get_their_rows) {
  Cluster cluster(1);
  RemoteBackend backend(cluster.options(false));
  declare(backend);
  std::mt19937_64 random(5);
  const Routed few = random_plan(cluster.placement, random, 50);
  const Routed many = random_plan(cluster.placement, random, 8000);
  const std::vector<float> few_rows = pulled(backend, few), many_rows = pulled(backend, many);
  become_prompt(backend, many, many_rows);
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) CHECK(pulled(backend, few) == few_rows);
  });
  for (int i = 0; i < 50; ++i) CHECK(pulled(backend, many) == many_rows);
  other.join();
}

}  // namespace springtide::peer_receive_test
