// Tests the shared window: pieces never overlap, offsets from a peer never reach outside, and a window that can shrink
// is refused.
#include "net/window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "base/types.h"
#include "testing/check.h"

namespace springtide::window_test {

TEST(offsets_outside_are_refused) {
  const Window window = Window::create(1 << 20);
  CHECK(window.valid());
  CHECK(window.at(0, 1 << 20, 8) != nullptr);
  CHECK(window.at(8, (1 << 20) - 8, 8) != nullptr);
  CHECK(window.at(8, (1 << 20) - 7, 8) == nullptr);
  CHECK(window.at(4, 8, 8) == nullptr);
  CHECK(window.at(4, 8, 4) != nullptr);
  CHECK(window.at(UINT64_MAX - 7, 16, 8) == nullptr);
  CHECK(window.at(8, UINT64_MAX - 4, 8) == nullptr);
  CHECK(window.offset_of(window.at(64, 8, 8), 8) == 64);
  int elsewhere = 0;
  CHECK(!window.offset_of(&elsewhere, sizeof elsewhere));
}

TEST(a_window_that_could_shrink_is_refused) {
  Fd open(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(ftruncate(open.get(), 4096) == 0);
  CHECK_THROWS(BadInput, Window::adopt(std::move(open), 1 << 20));
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  const Fd write_end(pipes[1]);
  CHECK_THROWS(BadInput, Window::adopt(Fd(pipes[0]), 1 << 20));
  CHECK_THROWS(BadInput, Window::adopt(Fd(), 1 << 20));
  const Window ours = Window::create(1 << 20);
  CHECK_THROWS(BadInput, Window::adopt(Fd(dup(ours.fd())), 1 << 19));
  const Window theirs = Window::adopt(Fd(dup(ours.fd())), 1 << 20);
  *ours.at(128, 8, 8) = 42;
  CHECK(*theirs.at(128, 8, 8) == 42);
}

TEST(pieces_never_overlap_and_all_come_back) {
  std::mt19937_64 random(7);
  constexpr uint64_t size = 1 << 16;
  WindowHeap heap(size);
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  std::vector<uint8_t> taken(size, 0);
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 || pieces.empty()) {
      const uint64_t bytes = random() % 4000 + 1;
      const auto offset = heap.allocate(bytes);
      if (!offset) continue;
      CHECK(*offset % 64 == 0 && *offset + bytes <= size);
      for (uint64_t at = *offset; at < *offset + bytes; ++at) CHECK(taken[at]++ == 0);
      pieces.emplace_back(*offset, bytes);
    } else {
      const size_t which = random() % pieces.size();
      const auto [offset, bytes] = pieces[which];
      for (uint64_t at = offset; at < offset + bytes; ++at) --taken[at];
      heap.release(offset);
      pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(which));
    }
  }
  for (const auto& [offset, bytes] : pieces) heap.release(offset);
  CHECK(heap.allocate(size) == 0);
}

}  // namespace springtide::window_test
