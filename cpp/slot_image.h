// One slot as bytes: what moves between servers and what checkpoints hold. Versioned, checksummed, sizes
// checked. In: a slot (store_export.cpp). Out: bytes, and back as a SlotImage (store_import.cpp); BadInput on
// anything torn or foreign.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "identity_set.h"
#include "types.h"

namespace springtide {

// A column of an image, read where it lies; nothing there is aligned.
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

// The rows of one table, column by column. Hashes stand for keys (hash.h).
struct TableImage {
  TableId id = 0;
  uint32_t dim = 0;
  DType dtype = DType::f32;
  OptimKind optimizer = OptimKind::sgd;
  uint32_t state_floats = 0;
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
  bool full = true;  // false: what changed since a cut
  std::vector<TableImage> tables;
  IdentitySet identities;  // batches that these rows have had
};

// How much of one table an image has.
struct TableShape {
  TableId id = 0;
  uint32_t dim = 0;
  DType dtype = DType::f32;
  OptimKind optimizer = OptimKind::sgd;
  uint32_t state_floats = 0;
  uint64_t rows = 0, waiting = 0, gone = 0;
};

// Where the next entry of each column of a table goes; nothing there is aligned.
struct TableColumns {
  uint8_t *rows, *row_ages, *weights, *state, *waiting, *waiting_ages, *waiting_counts, *gone;
};

// An image written in place: how much there is first, then each row straight to where it belongs. One that
// is used again keeps its memory.
class ImageWriter {
 public:
  // Bytes of an image. `about` has everything but tables, here and below.
  static size_t bytes_of_image(const SlotImage& about, std::span<const TableShape> shapes);
  bool has_room(size_t bytes) const { return bytes <= room_.size() || bytes <= capacity_; }
  // Memory for images of this size and some more, touched: making it takes as long as the copy itself, so it
  // is not for those who hold a lock.
  void make_room(size_t bytes);
  void begin(const SlotImage& about, std::span<const TableShape> shapes);
  TableColumns& columns(size_t table) { return columns_[table]; }
  void finish();  // when all columns are full
  std::span<const uint8_t> bytes() const { return {at_, size_}; }
  // The next images are written there if they fit, and else into memory of its own.
  void write_into(std::span<uint8_t> room) { room_ = room; }

 private:
  std::span<uint8_t> room_;
  std::unique_ptr<uint8_t[]> buffer_;
  uint8_t* at_ = nullptr;
  size_t capacity_ = 0, size_ = 0;
  std::vector<TableColumns> columns_;
};
// Good as long as the bytes are: its columns are not copied.
SlotImage decode(std::span<const uint8_t> bytes);

uint64_t checksum(std::span<const uint8_t> bytes);

// What the first bytes of an image say, unchecked against the rest: enough to note where it lies and to look
// for it there again.
struct ImageFacts {
  uint32_t slot = 0;
  bool full = true;
  uint64_t checksum = 0;  // of all that follows the header
};
ImageFacts facts_of(std::span<const uint8_t> bytes);
// Whether these bytes are one whole image, undamaged.
bool is_whole(std::span<const uint8_t> bytes);

}  // namespace springtide
