// Reserved address space, handed out in pieces that never move and are backed by huge pages.
// Above it: segment_pool.h (index), row_pool.h (rows).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace springtide {

class Arena {
 public:
  // Takes less when the system refuses this much address space, down to 1/64 of it; then BadInput.
  Arena(std::string name, size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed memory at the returned offset. BadInput when the arena is full.
  size_t take(size_t bytes, size_t align);
  uint8_t* base() const { return base_; }
  size_t capacity() const { return capacity_; }
  size_t resident() const;                                            // whole huge pages up to the last byte handed out
  static void full_after(uint64_t pieces) { pieces_left_ = pieces; }  // for tests: then all arenas are full

 private:
  static inline std::atomic<uint64_t> pieces_left_{UINT64_MAX};

  std::string name_;
  uint8_t* map_ = nullptr;
  size_t map_bytes_ = 0;
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
  mutable std::mutex lock_;
  size_t used_ = 0;
};

size_t machine_memory();

}  // namespace springtide
