// A thread that copies during training sleeps three times as long as it works; without training it never sleeps.
#include "migrate/slot_stream.h"

#include <chrono>
#include <ctime>

#include "testing/check.h"

namespace springtide::slot_stream_test {

namespace {

double read(clockid_t clock) {
  timespec at{};
  clock_gettime(clock, &at);
  return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
}

void work(double seconds) {
  const double until = read(CLOCK_THREAD_CPUTIME_ID) + seconds;
  while (read(CLOCK_THREAD_CPUTIME_ID) < until) {
  }
}

struct Served {
  Store store{StoreOptions{.slots = 64}};
  ServerState state{store, ServerOptions{}};
};

}  // namespace

TEST(it_rests_three_times_as_long_as_it_worked_while_requests_come) {
  Served served;
  CopyThrottle throttle(served.state);
  work(0.004);
  ++served.state.count.pulls;
  const double began = read(CLOCK_MONOTONIC), rested = throttle.pause();
  CHECK(rested >= 0.012);
  CHECK(read(CLOCK_MONOTONIC) - began >= rested);
}

TEST(it_does_not_rest_where_nobody_asks_for_rows_any_more) {
  Served served;
  CopyThrottle throttle(served.state);
  ++served.state.count.pushes;
  work(0.002);
  CHECK(throttle.pause() > 0);
  work(0.002);
  CHECK(throttle.pause() == 0);
}

TEST(short_work_is_saved_up) {
  Served served;
  CopyThrottle throttle(served.state);
  ++served.state.count.pulls;
  CHECK(throttle.pause() == 0);
  work(0.0004);
  CHECK(throttle.pause() >= 0.0012);
}

TEST(a_rest_ends_soon_however_long_the_work_was) {
  Served served;
  CopyThrottle throttle(served.state);
  ++served.state.count.pulls;
  work(0.1);
  CHECK(throttle.pause() <= 0.2);
}

}  // namespace springtide::slot_stream_test
