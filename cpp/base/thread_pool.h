// A small thread pool that splits one large call into shares and waits for all of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace springtide {

class ThreadPool {
 public:
  explicit ThreadPool(uint32_t threads) : threads_(threads) {}  // number of threads, including the caller's thread
  ~ThreadPool() {
    {
      std::lock_guard hold(lock_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& member : members_) member.join();
  }

  // Calls work(0) … work(shares - 1), each once. If the pool is busy with another call, the caller does all shares
  // itself.
  void run(uint32_t shares, const std::function<void(uint32_t)>& work) { run_in_order(shares, true, work, {}); }
  // Like run(). In addition, `done(n)` runs in the caller's thread once shares 0 to n - 1 are done, while other threads
  // may still work. The last call has n = `shares`. Without `helped`, the caller does all shares itself.
  void run_in_order(uint32_t shares, bool helped, const std::function<void(uint32_t)>& work,
                    const std::function<void(uint32_t)>& done) {
    std::unique_lock in_use(in_use_, std::defer_lock);
    if (!helped || threads_ < 2 || shares < 2 || !in_use.try_lock()) {
      for (uint32_t i = 0; i < shares; ++i) {
        work(i);
        if (done) done(i + 1);
      }
      return;
    }
    begin(shares, work);
    std::unique_lock hold(lock_);
    for (uint32_t told = done ? 0 : shares; !failure_;) {
      // call `done` before taking more work, so that the caller uses finished results while other threads work
      if (done_first_ > told) {
        told = done_first_;
        hold.unlock();
        call(told, done);
        hold.lock();
      } else if (const uint32_t share = take(); share != kNone) {
        hold.unlock();
        call(share, work);
        hold.lock();
        note_done(share);
      } else if (told == shares) {
        break;
      } else {
        finished_.wait(hold, [&] { return done_first_ > told || failure_; });
      }
    }
    end(hold);
  }
  uint32_t threads() const { return threads_; }

 private:
  void help() {
    uint64_t seen = 0;
    std::unique_lock hold(lock_);
    for (;;) {
      wake_.wait(hold, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      if (work_ == nullptr) continue;
      ++busy_;
      const auto* work = work_;
      for (uint32_t share = take(); share != kNone; share = take()) {
        hold.unlock();
        call(share, *work);
        hold.lock();
        note_done(share);
      }
      if (--busy_ == 0) finished_.notify_all();
    }
  }
  void begin(uint32_t shares, const std::function<void(uint32_t)>& work) {
    for (uint32_t i = static_cast<uint32_t>(members_.size()) + 1; i < threads_; ++i) {
      members_.emplace_back([this] { help(); });
    }
    {
      std::lock_guard hold(lock_);
      work_ = &work;
      shares_ = shares;
      next_ = done_first_ = 0;
      done_.assign(shares, 0);
      failure_ = nullptr;
      ++round_;
    }
    wake_.notify_all();
  }
  void end(std::unique_lock<std::mutex>& hold) {
    work_ = nullptr;  // a thread that wakes up only now finds no work, and no caller waits for it
    finished_.wait(hold, [&] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }
  static constexpr uint32_t kNone = UINT32_MAX;  // no share is left
  // The caller holds the lock during the next two functions.
  uint32_t take() { return next_ >= shares_ || failure_ ? kNone : next_++; }
  void note_done(uint32_t share) {
    done_[share] = 1;
    const uint32_t before = done_first_;
    while (done_first_ < shares_ && done_[done_first_] != 0) ++done_first_;
    if (done_first_ != before) finished_.notify_all();
  }
  void call(uint32_t number, const std::function<void(uint32_t)>& work) {
    try {
      work(number);
    } catch (...) {
      std::lock_guard hold(lock_);
      failure_ = std::current_exception();
    }
  }

  const uint32_t threads_;
  std::mutex in_use_;
  std::mutex lock_;
  std::condition_variable wake_, finished_;
  std::vector<std::thread> members_;
  const std::function<void(uint32_t)>* work_ = nullptr;
  uint32_t shares_ = 0, next_ = 0, busy_ = 0;
  std::vector<uint8_t> done_;  // by share
  uint32_t done_first_ = 0;    // shares 0 to done_first_ - 1 are done
  uint64_t round_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace springtide
