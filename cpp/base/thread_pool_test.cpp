// Shares of one call: each runs once, and the caller learns of finished shares while others still run.
#include "base/thread_pool.h"

#include <atomic>
#include <stdexcept>

#include "testing/check.h"

namespace springtide::thread_pool_test {

namespace {

void told_in_order(uint32_t threads, uint32_t shares, bool helped) {
  ThreadPool crew(threads);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::atomic<uint32_t>> done(shares);
    uint32_t told = 0;
    bool early = false, here = true;
    const auto caller = std::this_thread::get_id();
    crew.run_in_order(
        shares, helped, [&](uint32_t share) { ++done[share]; },
        [&](uint32_t count) {
          here = here && caller == std::this_thread::get_id() && count > told;
          told = count;
          for (uint32_t i = 0; i < count; ++i) early = early || done[i] != 1;
        });
    CHECK(told == shares && !early && here);
  }
}

}  // namespace

TEST(what_is_told_is_done_and_the_last_word_is_all) {
  for (const uint32_t shares : {1, 2, 7, 64}) {
    told_in_order(1, shares, true);
    told_in_order(2, shares, true);
    told_in_order(4, shares, true);
    told_in_order(4, shares, false);
  }
}

TEST(what_a_share_throws_comes_to_the_caller_and_the_crew_works_on) {
  for (const uint32_t bad : {0, 5, 31}) {
    ThreadPool crew(3);
    const auto work = [&](uint32_t share) {
      if (share == bad) throw std::runtime_error("no");
    };
    CHECK_THROWS(std::runtime_error, crew.run_in_order(32, true, work, [](uint32_t) {}));
    CHECK_THROWS(std::runtime_error, crew.run(32, work));
    CHECK_THROWS(std::runtime_error,
                 crew.run_in_order(32, true, [](uint32_t) {}, [](uint32_t) { throw std::runtime_error("nor this"); }));
    std::atomic<uint32_t> done{0};
    crew.run(32, [&](uint32_t) { ++done; });
    CHECK(done == 32);
  }
}

}  // namespace springtide::thread_pool_test
