// Shared memory between a client and a server on one host: a sealed memfd that the client creates and the
// server maps. It holds frame bodies; the socket carries the headers. Every offset from a peer is checked
// here.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "net/socket.h"

namespace springtide {

class Window {
 public:
  // Sparse: pages cost memory once they are touched. Invalid (see valid()) where the kernel refuses.
  static Window create(uint64_t bytes);
  // A descriptor from a peer. BadInput unless its size is fixed by a seal (else the peer could shrink it
  // under us).
  static Window adopt(Fd fd, uint64_t limit);
  Window() = default;
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  ~Window();

  bool valid() const { return base_ != nullptr; }
  int fd() const { return fd_.get(); }
  uint64_t size() const { return size_; }
  // Null unless [offset, offset + bytes) lies inside and offset is a multiple of `align`.
  uint8_t* at(uint64_t offset, uint64_t bytes, uint64_t align) const;
  // Where memory of ours lies in it; none when it does not.
  std::optional<uint64_t> offset_of(const void* memory, uint64_t bytes) const;

 private:
  static Window map(Fd fd, uint64_t bytes);
  Fd fd_;
  uint8_t* base_ = nullptr;
  uint64_t size_ = 0;
  int owner_ = 0;  // the process that mapped it; a forked child has other things at this address
};

// Hands out pieces of a window, first fit; pieces freed side by side become one again. Any thread.
class WindowHeap {
 public:
  explicit WindowHeap(uint64_t bytes);
  std::optional<uint64_t> allocate(uint64_t bytes);  // offset, a multiple of 64; none when there is no room
  void release(uint64_t offset);
  uint64_t used() const;

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes
  std::map<uint64_t, uint64_t> taken_;
  uint64_t used_ = 0;
};

}  // namespace springtide
