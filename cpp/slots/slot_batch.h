// Several slots in one frame: the body of Kind::own_all and of its reply. In: images or references. Out: bytes, and
// back as spans into them; BadInput on malformed input.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slots/slot_image.h"

namespace springtide {

class BatchWriter {
 public:
  explicit BatchWriter(bool by_reference) : bytes_{static_cast<uint8_t>(by_reference ? 1 : 0)} {}
  void begin(uint16_t slot, uint64_t transfer);  // what is appended to `bytes` now is its
  void end();                                    // of that
  void add(std::span<const uint8_t> image);      // between the two
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
  size_t began_ = 0;
};

struct SlotBatch {
  struct Part {
    uint16_t slot;
    uint64_t transfer;  // its name (TransferLog)
    std::span<const uint8_t> bytes;
  };
  bool by_reference = false;
  std::vector<Part> parts;
};
SlotBatch decode_batch(std::span<const uint8_t> bytes);

// Which of them are the target's now, and why the others are not.
struct BatchAnswer {
  std::vector<uint16_t> taken;
  std::string why;
};
std::vector<uint8_t> encode(const BatchAnswer& answer);
BatchAnswer decode_answer(std::span<const uint8_t> bytes);

// A slot by reference: keys and ages as bytes, and the addresses of its rows. A server on the same host reads the rows
// itself (process_vm_readv), which costs a CPU-throttled source next to nothing. The slot stays closed meanwhile.
// One table's part, column by column; addresses are of the process that wrote it.
struct TableReference {
  TableShape shape;
  uint32_t vector_bytes = 0, number_bytes = 0;  // of a row's state
  std::vector<uint64_t> rows, row_ages, weights_at, vectors_at, numbers_at;
  std::vector<uint64_t> waiting, waiting_ages;
  std::vector<uint32_t> waiting_counts;
  std::vector<uint64_t> gone;
};

struct SlotReference {
  SlotImage about;  // all but tables
  std::vector<TableReference> tables;
};

void encode(const SlotReference& slot, std::vector<uint8_t>& to);  // appended
SlotReference decode_reference(std::span<const uint8_t> bytes);    // BadInput on anything torn

// Reads the rows out of that process; BadInput when it cannot, or they are not all there.
void read_slot(int process, const SlotReference& slot, ImageWriter& to);

}  // namespace springtide
