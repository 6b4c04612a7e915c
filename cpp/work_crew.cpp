#include "work_crew.h"

namespace springtide {

WorkCrew::~WorkCrew() {
  {
    std::lock_guard hold(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& member : members_) member.join();
}

void WorkCrew::run(uint32_t shares, const std::function<void(uint32_t)>& work) {
  std::unique_lock in_use(in_use_, std::try_to_lock);
  if (threads_ < 2 || shares < 2 || !in_use.owns_lock()) {
    for (uint32_t i = 0; i < shares; ++i) work(i);
    return;
  }
  if (members_.empty()) start();
  {
    std::lock_guard hold(lock_);
    work_ = &work;
    shares_ = shares;
    next_ = 0;
    failure_ = nullptr;
    ++round_;
  }
  wake_.notify_all();
  take_shares(work, shares);
  std::unique_lock hold(lock_);
  work_ = nullptr;  // a member that wakes up only now finds nothing to do, and nobody waits for it
  finished_.wait(hold, [&] { return busy_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void WorkCrew::start() {
  for (uint32_t i = 1; i < threads_; ++i) members_.emplace_back([this] { help(); });
}

void WorkCrew::help() {
  uint64_t seen = 0;
  for (;;) {
    std::unique_lock hold(lock_);
    wake_.wait(hold, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    if (work_ == nullptr) continue;
    ++busy_;
    const auto* work = work_;
    uint32_t shares = shares_;
    hold.unlock();
    take_shares(*work, shares);
    hold.lock();
    if (--busy_ == 0) finished_.notify_all();
  }
}

void WorkCrew::take_shares(const std::function<void(uint32_t)>& work, uint32_t shares) {
  for (;;) {
    uint32_t mine;
    {
      std::lock_guard hold(lock_);
      if (next_ >= shares || failure_) return;
      mine = next_++;
    }
    try {
      work(mine);
    } catch (...) {
      std::lock_guard hold(lock_);
      failure_ = std::current_exception();
    }
  }
}

}  // namespace springtide
