// A few threads that help with one large call. In: a number of shares and what to do with each. Out: all
// done.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace springtide {

class WorkCrew {
 public:
  explicit WorkCrew(uint32_t threads) : threads_(threads) {}  // the caller is one of them
  ~WorkCrew();

  // Calls work(0) … work(shares - 1), each once. A crew that is busy with another call leaves it to the
  // caller.
  void run(uint32_t shares, const std::function<void(uint32_t)>& work);
  uint32_t threads() const { return threads_; }

 private:
  void start();
  void help();
  void take_shares(const std::function<void(uint32_t)>& work, uint32_t shares);

  const uint32_t threads_;
  std::mutex in_use_;
  std::mutex lock_;
  std::condition_variable wake_, finished_;
  std::vector<std::thread> members_;
  const std::function<void(uint32_t)>* work_ = nullptr;
  uint32_t shares_ = 0, next_ = 0, busy_ = 0;
  uint64_t round_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace springtide
