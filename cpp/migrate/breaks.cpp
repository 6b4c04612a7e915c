#include "migrate/breaks.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

namespace springtide {
namespace {

constexpr double kRestPerWork = 3;   // so a quarter of a processor, and whoever lays the copies in as much
constexpr double kShortest = 0.001;  // seconds: shorter rests are saved up
constexpr double kLongest = 0.2;     // one that is waited for to end does not rest for long

double worked() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace

Breaks::Breaks(const ServerState& state) : state_(state), seen_(requests()), worked_until_(worked()) {}

double Breaks::take() {
  const double now = worked(), rest = std::min(kRestPerWork * (now - worked_until_), kLongest);
  if (rest < kShortest) return 0;
  worked_until_ = now;
  const uint64_t requests_now = requests();
  if (requests_now == seen_) return 0;
  seen_ = requests_now;
  std::this_thread::sleep_for(std::chrono::duration<double>(rest));
  return rest;
}

}  // namespace springtide
