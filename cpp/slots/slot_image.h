// The binary image of one slot, for migration and checkpoints. An image has a version and a checksum, and sizes are
// checked. The batches that the slot has applied come last, so that a segment file can store them once for several
// slots. store_export.cpp writes it and store_slots.cpp reads it. Throws BadInput on malformed input.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "slots/identity_set.h"

namespace springtide {

// A column of an image, which is read in place. Values are not aligned.
template <class T>
struct Column {
  const uint8_t* at = nullptr;
  size_t count = 0;

  size_t size() const { return count; }
  T operator[](size_t i) const {
    T value;
    std::memcpy(&value, at + i * sizeof(T), sizeof value);
    return value;
  }
};

// How the rows of a table are stored.
struct TableFormat {
  TableId id = 0;
  uint32_t dim = 0;
  DType dtype = DType::f32;
  OptimKind optimizer = OptimKind::sgd;
  uint32_t state_floats = 0;
};

// The rows of one table, column by column. Keys are stored as hashes (hash.h).
struct TableImage : TableFormat {
  Column<uint64_t> rows, row_ages;
  Column<uint8_t> weights, state;
  Column<uint64_t> waiting, waiting_ages;
  Column<uint32_t> waiting_counts;
  Column<uint64_t> gone;
};

struct SlotImage {
  uint32_t slot = 0;
  uint32_t slots = 0;
  uint64_t seed = 0;
  uint64_t clock = 0;
  bool full = true;  // if false, the image has only changes since a cut
  std::vector<TableImage> tables;
  IdentitySet identities;  // batches applied to these rows
};

// Format and counts of one table in an image.
struct TableShape : TableFormat {
  uint64_t rows = 0, waiting = 0, gone = 0;
};

// The place where the next entry of each column of a table is written; not aligned.
struct TableColumns {
  uint8_t *rows, *row_ages, *weights, *state, *waiting, *waiting_ages, *waiting_counts, *gone;
};

// Writes an image in place: first the sizes, and then each row directly to its position. The object reuses its memory.
class ImageWriter {
 public:
  // Returns the size of an image in bytes. Here and below, `about` has everything except tables.
  static size_t bytes_of_image(const SlotImage& about, std::span<const TableShape> shapes);
  bool has_room(size_t bytes) const { return bytes <= room_.size() || bytes <= capacity_; }
  // Allocates and touches memory for images of this size, which takes as long as a copy. Do not call this function
  // while you hold a lock.
  void reserve_more(size_t bytes);
  void make_room_for(size_t bytes) {
    if (!has_room(bytes)) reserve_more(bytes);
  }
  void begin(const SlotImage& about, std::span<const TableShape> shapes);
  TableColumns& columns(size_t table) { return columns_[table]; }
  void finish();  // call this function when all columns are full, unless the caller computes the checksum
  std::span<const uint8_t> bytes() const { return {at_, size_}; }
  std::span<const uint8_t> identities() const { return bytes().last(identity_bytes_); }
  bool full() const { return full_; }
  // Writes the next images into `room` if they fit, otherwise into its own memory.
  void write_into(std::span<uint8_t> room) { room_ = room; }

 private:
  std::span<uint8_t> room_;
  std::unique_ptr<uint8_t[]> buffer_;
  uint8_t* at_ = nullptr;
  size_t capacity_ = 0, size_ = 0, identity_bytes_ = 0;
  bool full_ = true;
  std::vector<TableColumns> columns_;
};
// The result is valid as long as the bytes are, because columns are not copied.
SlotImage decode(std::span<const uint8_t> bytes);
// Reads the image without checks, for a complete or incomplete image of this process.
SlotImage view(std::span<const uint8_t> bytes);

// Checksum over bytes that are added in several pieces. Four independent lanes make the checksum run at memory speed.
// The checksum does not protect against forgery; connections are authenticated separately.
class Checksum {
 public:
  void add(std::span<const uint8_t> bytes);
  uint64_t value() const;

 private:
  static constexpr size_t kBlock = 32;
  void add_blocks(const uint8_t* at, size_t blocks);

  uint64_t lanes_[4] = {1, 2, 3, 4};
  uint8_t rest_[kBlock] = {};  // the last bytes, which are less than a block
  size_t rests_ = 0;
  uint64_t bytes_ = 0;
};
uint64_t checksum(std::span<const uint8_t> bytes);

// The headers of an image whose columns are stored elsewhere: one before the first table, and one before each table.
struct ImageHeads {
  std::vector<uint8_t> slot;
  std::vector<std::vector<uint8_t>> tables;
};
ImageHeads heads_of(const SlotImage& about, std::span<const TableShape> shapes);
// Number of first bytes of an image that contain its size and the checksum of the bytes after them.
constexpr size_t kUnsummed = 24;
std::array<uint8_t, kUnsummed> signature(uint64_t bytes, const Checksum& follow);

// The first bytes of an image. These bytes are not checked against the rest of the image.
struct ImageInfo {
  uint32_t slot = 0;
  bool full = true;
  uint64_t checksum = 0;  // checksum of all data after the header
};
ImageInfo image_info(std::span<const uint8_t> bytes);
// Returns true if these bytes are one complete, undamaged image.
bool is_whole(std::span<const uint8_t> bytes);

}  // namespace springtide
