// Tests that requests wait while a throttled server hands slots over, and that they never wait for long.
#include "server/requests/server_state.h"

#include <future>
#include <optional>

#include "testing/check.h"

namespace springtide::server_state_test {

namespace {

// Starts a request in a separate thread.
std::future<void> request(RequestPause& pause) {
  std::promise<void> comes;
  std::future<void> came = comes.get_future();
  std::future<void> served = std::async(std::launch::async, [&pause, comes = std::move(comes)]() mutable {
    comes.set_value();
    pause.wait();
  });
  came.wait();
  return served;
}

bool waits(const std::future<void>& one) {
  return one.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout;
}

}  // namespace

TEST(without_a_pause_no_request_waits) {
  RequestPause pause;
  pause.wait();
  {
    const RequestPause::Scope scope(pause);
  }
  pause.wait();
}

TEST(a_request_waits_until_some_slots_have_moved_and_a_later_one_for_the_next) {
  RequestPause pause;
  std::optional<RequestPause::Scope> scope(pause);
  const std::future<void> first = request(pause);
  CHECK(waits(first));
  scope->release_waiting();
  first.wait();
  const std::future<void> second = request(pause);
  CHECK(waits(second));
  scope.reset();
  second.wait();
}

TEST(a_pause_that_does_not_end_blocks_a_request_for_seconds_only) {
  RequestPause pause;
  const RequestPause::Scope scope(pause);
  const auto began = std::chrono::steady_clock::now();
  pause.wait();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  CHECK(seconds > 1.5 && seconds < 30);
}

}  // namespace springtide::server_state_test
