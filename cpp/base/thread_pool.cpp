#include "base/thread_pool.h"

namespace springtide {

ThreadPool::~ThreadPool() {
  {
    std::lock_guard hold(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& member : members_) member.join();
}

void ThreadPool::run(uint32_t shares, const std::function<void(uint32_t)>& work) {
  std::unique_lock in_use(in_use_, std::try_to_lock);
  if (threads_ < 2 || shares < 2 || !in_use.owns_lock()) {
    for (uint32_t i = 0; i < shares; ++i) work(i);
    return;
  }
  begin(shares, work);
  std::unique_lock hold(lock_);
  for (uint32_t share = take(); share != kNone; share = take()) {
    hold.unlock();
    call(share, work);
    hold.lock();
  }
  end(hold);
}

void ThreadPool::run_in_order(uint32_t shares, bool helped, const std::function<void(uint32_t)>& work,
                              const std::function<void(uint32_t)>& done) {
  std::unique_lock in_use(in_use_, std::defer_lock);
  if (!helped || threads_ < 2 || shares < 2 || !in_use.try_lock()) {
    for (uint32_t i = 0; i < shares; ++i) {
      work(i);
      done(i + 1);
    }
    return;
  }
  begin(shares, work);
  std::unique_lock hold(lock_);
  for (uint32_t told = 0; told < shares && !failure_;) {
    if (done_first_ > told) {  // first of all: whoever uses it does so beside what follows
      told = done_first_;
      hold.unlock();
      call(told, done);
      hold.lock();
    } else if (const uint32_t share = take(); share != kNone) {
      hold.unlock();
      call(share, work);
      hold.lock();
      note_done(share);
    } else {
      finished_.wait(hold, [&] { return done_first_ > told || failure_; });
    }
  }
  end(hold);
}

void ThreadPool::begin(uint32_t shares, const std::function<void(uint32_t)>& work) {
  if (members_.empty()) start();
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

void ThreadPool::end(std::unique_lock<std::mutex>& hold) {
  work_ = nullptr;  // a member that wakes up only now finds nothing to do, and nobody waits for it
  finished_.wait(hold, [&] { return busy_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadPool::start() {
  for (uint32_t i = 1; i < threads_; ++i) members_.emplace_back([this] { help(); });
}

void ThreadPool::help() {
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

uint32_t ThreadPool::take() { return next_ >= shares_ || failure_ ? kNone : next_++; }

void ThreadPool::note_done(uint32_t share) {
  done_[share] = 1;
  const uint32_t before = done_first_;
  while (done_first_ < shares_ && done_[done_first_] != 0) ++done_first_;
  if (done_first_ != before) finished_.notify_all();  // nobody is woken where nobody waits
}

void ThreadPool::call(uint32_t number, const std::function<void(uint32_t)>& work) {
  try {
    work(number);
  } catch (...) {
    std::lock_guard hold(lock_);
    failure_ = std::current_exception();
  }
}

}  // namespace springtide
