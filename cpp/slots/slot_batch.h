// Several slots in one frame: the body of Kind::own_all and of its reply. In: images or references. Out: bytes, and
// back as spans into these bytes. Throws BadInput on malformed input.
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
  void begin(uint16_t slot, uint64_t transfer);  // bytes that are appended from now on belong to this slot
  void end();                                    // ends the slot that begin() started
  void add(std::span<const uint8_t> image);      // between the two
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
  size_t began_ = 0;
};

struct SlotBatch {
  struct Part {
    uint16_t slot;
    uint64_t transfer;  // id of the transfer (TransferLog)
    std::span<const uint8_t> bytes;
  };
  bool by_reference = false;
  std::vector<Part> parts;
};
SlotBatch decode_batch(std::span<const uint8_t> bytes);

// The slots that the target accepted, and the reason why it refused the remaining slots.
struct BatchAnswer {
  std::vector<uint16_t> taken;
  std::string why;
};
std::vector<uint8_t> encode(const BatchAnswer& answer);
BatchAnswer decode_answer(std::span<const uint8_t> bytes);

// A slot by reference: its keys and ages as bytes, and the addresses of its rows. A server on the same host reads the
// rows itself (process_vm_readv), which costs a CPU-throttled source almost nothing. The slot stays closed meanwhile.
// TableReference has the part of one table, column by column. The addresses are addresses in the source process.
struct TableReference {
  TableShape shape;
  uint32_t vector_bytes = 0, number_bytes = 0;  // of a row's state
  std::vector<uint64_t> rows, row_ages, weights_at, vectors_at, numbers_at;
  std::vector<uint64_t> waiting, waiting_ages;
  std::vector<uint32_t> waiting_counts;
  std::vector<uint64_t> gone;
};

struct SlotReference {
  SlotImage about;  // everything except tables
  std::vector<TableReference> tables;
};

void encode(const SlotReference& slot, std::vector<uint8_t>& to);  // appended
SlotReference decode_reference(std::span<const uint8_t> bytes);    // throws BadInput if anything is torn

// Reads the rows from the memory of that process. Throws BadInput if any of the rows cannot be read.
void read_slot(int process, const SlotReference& slot, ImageWriter& to);

}  // namespace springtide
