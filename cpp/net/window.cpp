#include "net/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/types.h"

namespace springtide {

Window Window::map(Fd fd, uint64_t bytes) {
  Window window;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return window;
  madvise(base, bytes, MADV_DONTFORK);  // a forked data loader has no business with it
  window.fd_ = std::move(fd);
  window.base_ = static_cast<uint8_t*>(base);
  window.size_ = bytes;
  window.owner_ = getpid();
  return window;
}

Window Window::create(uint64_t bytes) {
  Fd fd(memfd_create("springtide-window", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Window();
  }
  return map(std::move(fd), bytes);
}

Window Window::adopt(Fd fd, uint64_t limit) {
  const int seals = fd ? fcntl(fd.get(), F_GET_SEALS) : -1;
  struct stat about{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &about) != 0) {
    throw BadInput("a shared window must be a memfd that is sealed against shrinking");
  }
  const auto bytes = static_cast<uint64_t>(about.st_size);
  if (bytes == 0 || bytes > limit) {
    throw BadInput("a shared window of " + std::to_string(bytes) + " bytes; at most " + std::to_string(limit));
  }
  Window window = map(std::move(fd), bytes);
  if (!window.valid()) throw BadInput("a shared window of " + std::to_string(bytes) + " bytes cannot be mapped");
  return window;
}

Window::Window(Window&& other) noexcept { *this = std::move(other); }

Window& Window::operator=(Window&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(owner_, other.owner_);
  return *this;
}

Window::~Window() {
  if (base_ != nullptr && owner_ == getpid()) munmap(base_, size_);
}

uint8_t* Window::at(uint64_t offset, uint64_t bytes, uint64_t align) const {
  if (offset % align != 0 || offset > size_ || bytes > size_ - offset) return nullptr;
  return base_ + offset;
}

std::optional<uint64_t> Window::offset_of(const void* memory, uint64_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(memory), base = reinterpret_cast<uintptr_t>(base_);
  if (base_ == nullptr || address < base || address - base > size_ || bytes > size_ - (address - base)) return {};
  return address - base;
}

WindowHeap::WindowHeap(uint64_t bytes) { free_[0] = bytes; }

std::optional<uint64_t> WindowHeap::allocate(uint64_t bytes) {
  const uint64_t need = (bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0);
  const std::lock_guard lock(mutex_);
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    if (piece->second < need) continue;
    const auto [offset, room] = *piece;
    free_.erase(piece);
    if (room > need) free_[offset + need] = room - need;
    taken_[offset] = need;
    used_ += need;
    return offset;
  }
  return {};
}

void WindowHeap::release(uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(offset);
  if (taken == taken_.end()) return;
  uint64_t bytes = taken->second;
  used_ -= bytes;
  taken_.erase(taken);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

uint64_t WindowHeap::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace springtide
