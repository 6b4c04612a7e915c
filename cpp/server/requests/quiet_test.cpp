// Requests wait while slots are given away in a hurry, each until some are gone, and nobody for long.
#include "server/requests/quiet.h"

#include <future>
#include <optional>

#include "testing/check.h"

using namespace springtide;

namespace {

// A request that comes now, in a thread of its own.
std::future<void> request(Quiet& quiet) {
  std::promise<void> comes;
  std::future<void> came = comes.get_future();
  std::future<void> served = std::async(std::launch::async, [&quiet, comes = std::move(comes)]() mutable {
    comes.set_value();
    quiet.wait();
  });
  came.wait();
  return served;
}

bool waits(const std::future<void>& one) {
  return one.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout;
}

}  // namespace

TEST(without_a_hurry_nobody_waits) {
  Quiet quiet;
  quiet.wait();
  {
    const Quiet::Time hurry(quiet);
  }
  quiet.wait();
}

TEST(who_comes_meanwhile_waits_until_some_slots_are_gone_and_who_comes_then_for_the_next) {
  Quiet quiet;
  std::optional<Quiet::Time> hurry(quiet);
  const std::future<void> first = request(quiet);
  CHECK(waits(first));
  hurry->next();
  first.wait();
  const std::future<void> second = request(quiet);
  CHECK(waits(second));
  hurry.reset();
  second.wait();
}

TEST(a_hurry_that_does_not_end_keeps_nobody_for_long) {
  Quiet quiet;
  const Quiet::Time hurry(quiet);
  const auto began = std::chrono::steady_clock::now();
  quiet.wait();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  CHECK(seconds > 1.5 && seconds < 30);
}

CHECK_MAIN
