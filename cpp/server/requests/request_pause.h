// Pauses requests while a CPU-throttled server hands its slots over.
//
// A CPU quota is shared by all threads of the process, whatever their priority. Threads that serve requests
// would use it up, and the thread that hands slots over would wait for the next period after each of its
// frames. Used by handover.cpp and request_handler.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace springtide {

class RequestPause {
 public:
  // Requests wait while a Scope lives. One at a time.
  class Scope {
   public:
    explicit Scope(RequestPause& pause) : pause_(pause) { pause_.set_active(true); }
    ~Scope() { pause_.set_active(false); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // Some slots have a new owner: the requests that wait now go on and learn of it.
    void release_waiting() { pause_.set_active(true); }

   private:
    RequestPause& pause_;
  };

  // Blocks a request until release_waiting(), the end of the scope, or kLongestWait.
  void wait() {
    if (!active_) return;
    std::unique_lock lock(mutex_);
    const uint64_t round = rounds_;
    changed_.wait_for(lock, kLongestWait, [&] { return !active_ || rounds_ != round; });
  }

 private:
  // A target that does not answer must not block requests for slots that are still here.
  static constexpr std::chrono::seconds kLongestWait{2};

  void set_active(bool active) {
    {
      const std::lock_guard lock(mutex_);
      active_ = active;
      ++rounds_;
    }
    changed_.notify_all();
  }

  std::atomic<bool> active_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t rounds_ = 0;
};

}  // namespace springtide
