// Reserved address space. Its pieces are allocated from the start, never move, and use huge pages.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/types.h"

namespace springtide {

class Arena : public NoCopy {
 public:
  // If the system refuses this much address space, reserves less, down to 1/64. Throws BadInput if the system refuses
  // even that.
  Arena(std::string name, size_t bytes) : name_(std::move(name)) {
    size_t wanted = round_up(std::max(bytes, kHugePage), kHugePage);
    for (size_t least = wanted / 64; wanted >= least; wanted /= 2) {
      map_bytes_ = wanted + kHugePage;
      void* got = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (got == MAP_FAILED) continue;
      map_ = static_cast<uint8_t*>(got);
      base_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(got), kHugePage));
      capacity_ = wanted / kHugePage * kHugePage;
      madvise(base_, capacity_, MADV_HUGEPAGE);  // only an optimization, so errors are ignored
      // A forked data loader never reads tables. If pages were shared with it, every later write here would copy a
      // page.
      madvise(base_, capacity_, MADV_DONTFORK);
      return;
    }
    throw BadInput("cannot reserve ", bytes >> 20, " MiB of address space for the ", name_,
                   "; check `ulimit -v` and vm.overcommit_memory, or give a smaller reserve_bytes");
  }
  ~Arena() { munmap(map_, map_bytes_); }

  // Returns the offset of zeroed memory. Throws BadInput if the arena is full.
  size_t take(size_t bytes, size_t align) {
    std::lock_guard hold(lock_);
    size_t at = round_up(used_, align);
    if (pieces_left_ == 0 || at + bytes > capacity_) {
      throw BadInput("the ", name_, " of this store are full: ", capacity_ >> 20,
                     " MiB were reserved; raise reserve_bytes, add servers, or give tables a ttl or a capacity");
    }
    if (pieces_left_ != UINT64_MAX) --pieces_left_;
    used_ = at + bytes;
    return at;
  }
  uint8_t* base() const { return base_; }
  size_t capacity() const { return capacity_; }
  // whole huge pages up to the last byte in use
  size_t resident() const {
    std::lock_guard hold(lock_);
    return round_up(used_, kHugePage);
  }
  // For tests: after this many take() calls, all arenas are full.
  static void full_after(uint64_t pieces) { pieces_left_ = pieces; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
  static inline std::atomic<uint64_t> pieces_left_{UINT64_MAX};

  std::string name_;
  uint8_t* map_ = nullptr;
  size_t map_bytes_ = 0;
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
  mutable std::mutex lock_;
  size_t used_ = 0;
};

inline size_t machine_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace springtide
