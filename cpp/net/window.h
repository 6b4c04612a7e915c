// Shared memory between a client and a server on one host: a sealed memfd that the client creates and the server maps.
// The memory holds frame bodies; the socket carries the headers. Every offset from a peer is checked here.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "base/types.h"
#include "net/socket.h"

namespace springtide {

class Window {
 public:
  // Pages use memory only once they are touched. Returns an invalid window (see valid()) if the kernel refuses.
  static Window create(uint64_t bytes) {
    Fd fd(memfd_create("springtide-window", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return Window();
    }
    return map(std::move(fd), bytes);
  }
  // Maps a descriptor from a peer. Throws BadInput unless the descriptor is sealed against shrinking, because otherwise
  // the peer could shrink the window while it is used.
  static Window adopt(Fd fd, uint64_t limit) {
    const int seals = fd ? fcntl(fd.get(), F_GET_SEALS) : -1;
    struct stat about{};
    throw_if<BadInput>(seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &about) != 0,
                       "a shared window must be a memfd that is sealed against shrinking");
    const auto bytes = static_cast<uint64_t>(about.st_size);
    throw_if<BadInput>(bytes == 0 || bytes > limit, "a shared window of ", bytes, " bytes; at most ", limit);
    Window window = map(std::move(fd), bytes);
    if (!window.valid()) throw BadInput("a shared window of ", bytes, " bytes cannot be mapped");
    return window;
  }
  Window() = default;
  Window(Window&& other) noexcept { *this = std::move(other); }
  Window& operator=(Window&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(base_, other.base_);
    std::swap(size_, other.size_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~Window() {
    if (base_ != nullptr && owner_ == getpid()) munmap(base_, size_);
  }

  bool valid() const { return base_ != nullptr; }
  int fd() const { return fd_.get(); }
  uint64_t size() const { return size_; }
  // Returns null unless [offset, offset + bytes) lies inside the window and `offset` is a multiple of `align`.
  uint8_t* at(uint64_t offset, uint64_t bytes, uint64_t align) const {
    if (offset % align != 0 || offset > size_ || bytes > size_ - offset) return nullptr;
    return base_ + offset;
  }
  // Returns the offset of the memory in the window; none if the memory is outside of it.
  std::optional<uint64_t> offset_of(const void* memory, uint64_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(memory), base = reinterpret_cast<uintptr_t>(base_);
    if (base_ == nullptr || address < base || address - base > size_ || bytes > size_ - (address - base)) return {};
    return address - base;
  }

 private:
  static Window map(Fd fd, uint64_t bytes) {
    Window window;
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
    if (base == MAP_FAILED) return window;
    madvise(base, bytes, MADV_DONTFORK);  // forked data loaders must not inherit the window
    window.fd_ = std::move(fd);
    window.base_ = static_cast<uint8_t*>(base);
    window.size_ = bytes;
    window.owner_ = getpid();
    return window;
  }
  Fd fd_;
  uint8_t* base_ = nullptr;
  uint64_t size_ = 0;
  int owner_ = 0;  // process that mapped the window; a forked child must not unmap this address
};

// Allocates pieces of a window, first fit, and merges adjacent free pieces. Thread-safe.
class WindowHeap {
 public:
  explicit WindowHeap(uint64_t bytes) { free_[0] = bytes; }
  // Returns the offset, which is a multiple of 64; none if there is no room.
  std::optional<uint64_t> allocate(uint64_t bytes) {
    const uint64_t need = (bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0);
    const std::lock_guard lock(mutex_);
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
      if (piece->second < need) continue;
      const auto [offset, room] = *piece;
      free_.erase(piece);
      if (room > need) free_[offset + need] = room - need;
      taken_[offset] = need;
      return offset;
    }
    return {};
  }
  void release(uint64_t offset) {
    const std::lock_guard lock(mutex_);
    const auto taken = taken_.find(offset);
    if (taken == taken_.end()) return;
    uint64_t bytes = taken->second;
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

 private:
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes
  std::map<uint64_t, uint64_t> taken_;
};

}  // namespace springtide
