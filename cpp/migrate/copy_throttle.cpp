#include "migrate/copy_throttle.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

namespace springtide {
namespace {

constexpr double kSleepPerWork = 3;  // a quarter of a core here, and as much at the target
constexpr double kShortest = 0.001;  // seconds; shorter sleeps are added up
constexpr double kLongest = 0.2;     // seconds; bounds the wait for a thread that has to stop

double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace

CopyThrottle::CopyThrottle(const ServerState& state)
    : state_(state), requests_before_(requests()), cpu_before_(cpu_seconds()) {}

double CopyThrottle::pause() {
  const double now = cpu_seconds(), sleep = std::min(kSleepPerWork * (now - cpu_before_), kLongest);
  if (sleep < kShortest) return 0;
  cpu_before_ = now;
  const uint64_t requests_now = requests();
  if (requests_now == requests_before_) return 0;
  requests_before_ = requests_now;
  std::this_thread::sleep_for(std::chrono::duration<double>(sleep));
  return sleep;
}

}  // namespace springtide
