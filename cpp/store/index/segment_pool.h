// Buddy allocator of index segments: power-of-two blocks of 256 B and up in one arena. Above it:
// slot_index.h.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "store/index/arena.h"

namespace springtide {

class SegmentPool {
 public:
  static constexpr size_t kUnit = 256;

  explicit SegmentPool(size_t reserve_bytes);

  uint32_t take(uint32_t size_class);  // zeroed, kUnit << size_class bytes
  void give_back(uint32_t unit, uint32_t size_class);
  uint8_t* at(uint32_t unit) const { return arena_.base() + unit * kUnit; }
  size_t resident() const;

 private:
  static constexpr uint32_t kClasses = 24;     // up to 2 GiB: a directory of half a billion segments
  static constexpr uint32_t kChunkClass = 12;  // what is taken from the arena at once: 1 MiB

  struct FreeBlock {  // lies in the free block itself
    uint32_t next, prev;
  };
  FreeBlock& links(uint32_t unit) { return *reinterpret_cast<FreeBlock*>(at(unit)); }
  void push_free(uint32_t unit, uint32_t size_class);
  void remove_free(uint32_t unit, uint32_t size_class);

  Arena arena_;
  Arena tags_arena_;
  uint8_t* tags_;  // a unit: size class + 1 where a free block starts, else 0
  std::mutex lock_;
  std::array<uint32_t, kClasses> free_{};  // 0: none; unit 0 is never given out
};

}  // namespace springtide
