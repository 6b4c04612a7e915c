// A slot by reference: keys and ages as bytes, and the addresses of its rows. A server on the same host reads
// the rows itself (process_vm_readv), which costs a CPU-throttled source next to nothing. The slot stays
// closed meanwhile. Used by throttled_handover.cpp and slot_requests.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slots/slot_image.h"

namespace springtide {

// One table's part, column by column. Addresses are of the process that wrote it.
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
