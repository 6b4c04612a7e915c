// A small thread pool for one large call: splits it into shares and waits for all of them.
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
  explicit ThreadPool(uint32_t threads) : threads_(threads) {}  // the caller is one of them
  ~ThreadPool();

  // Calls work(0) … work(shares - 1), each once. A crew that is busy with another call leaves it to the
  // caller.
  void run(uint32_t shares, const std::function<void(uint32_t)>& work);
  // The same, telling the caller in between how many from the first on are done: `done(n)` runs in its thread
  // while others still work, the last time with all. Without `helped` it works alone.
  void run_in_order(uint32_t shares, bool helped, const std::function<void(uint32_t)>& work,
                    const std::function<void(uint32_t)>& done);
  uint32_t threads() const { return threads_; }

 private:
  void start();
  void help();
  void begin(uint32_t shares, const std::function<void(uint32_t)>& work);
  void end(std::unique_lock<std::mutex>& hold);
  static constexpr uint32_t kNone = UINT32_MAX;
  // With the lock held.
  uint32_t take();  // kNone: nothing is left
  void note_done(uint32_t share);
  void call(uint32_t number, const std::function<void(uint32_t)>& work);  // keeps what it throws

  const uint32_t threads_;
  std::mutex in_use_;
  std::mutex lock_;
  std::condition_variable wake_, finished_;
  std::vector<std::thread> members_;
  const std::function<void(uint32_t)>* work_ = nullptr;
  uint32_t shares_ = 0, next_ = 0, busy_ = 0;
  std::vector<uint8_t> done_;  // by share
  uint32_t done_first_ = 0;    // from the first on
  uint64_t round_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace springtide
