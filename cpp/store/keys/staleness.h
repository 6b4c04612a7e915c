// Staleness of pushes: how many other pushes were applied between the read of a push's rows and its
// application. Out: median and maximum, for the server's statistics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace springtide {

class Staleness {
 public:
  // Pushes that have changed rows of this server so far: what a pull's reply tells and a push tells back.
  uint64_t applied() const { return applied_.load(std::memory_order_relaxed); }

  void push_applied() { applied_.fetch_add(1, std::memory_order_relaxed); }
  // The same, of a push whose rows were read when `seen` pushes had been applied.
  void push_applied(uint64_t seen);

  uint64_t median() const;
  uint64_t most() const { return most_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kCounted = 1024;  // lags from here on count as this one for the median

  std::atomic<uint64_t> applied_{0}, most_{0};
  std::array<std::atomic<uint64_t>, kCounted + 1> pushes_{};  // by lag
};

}  // namespace springtide
