// Requests that wait while a server with hardly any processor left gives its slots away. What it may use of
// the processors is a quota over all of them: threads that serve would use it up on another core, however
// nice they are, and the one that gives would wait for the next period at each of its words.
// In: one who gives, beginning and ending; requests, before they are looked at. Used by hurried.cpp and
// request_handler.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace springtide {

class Quiet {
 public:
  // While one lives, requests wait. One at a time.
  class Time {
   public:
    explicit Time(Quiet& quiet) : quiet_(quiet) { quiet_.turn(true); }
    ~Time() { quiet_.turn(false); }
    Time(const Time&) = delete;
    Time& operator=(const Time&) = delete;
    // Some slots are another's now: who has waited so far may go on, and learns that.
    void next() { quiet_.turn(true); }

   private:
    Quiet& quiet_;
  };

  // Before a request is served: until those slots that are being given are gone, and not for long.
  void wait() {
    if (!on_) return;
    std::unique_lock lock(mutex_);
    const uint64_t now = turns_;
    over_.wait_for(lock, kMost, [&] { return !on_ || turns_ != now; });
  }

 private:
  // A target that does not answer keeps nobody from slots that are still here.
  static constexpr std::chrono::seconds kMost{2};

  void turn(bool on) {
    {
      const std::lock_guard lock(mutex_);
      on_ = on;
      ++turns_;
    }
    over_.notify_all();
  }

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::condition_variable over_;
  uint64_t turns_ = 0;
};

}  // namespace springtide
