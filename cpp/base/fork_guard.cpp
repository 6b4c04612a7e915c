#include "base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

namespace springtide {
namespace {

// Plain cells, for the child of a process with threads may neither lock nor allocate. 0: free, else fd + 1.
std::array<std::atomic<int>, 4096> guarded{};

void close_all() {
  for (auto& cell : guarded) {
    const int fd = cell.exchange(0) - 1;
    if (fd >= 0) close(fd);
  }
}

}  // namespace

void close_in_children(int fd) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, close_all); });
  for (auto& cell : guarded) {
    int free = 0;
    if (cell.compare_exchange_strong(free, fd + 1)) return;
  }
}

void forget_in_children(int fd) {
  for (auto& cell : guarded) {
    int mine = fd + 1;
    if (cell.compare_exchange_strong(mine, 0)) return;
  }
}

}  // namespace springtide
