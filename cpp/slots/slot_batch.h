// Several slots in one frame: the body of Kind::own_all and of its reply. In: images or references
// (slot_reference.h). Out: bytes, and back as spans into them; BadInput on malformed input.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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
    uint64_t transfer;  // its name (transfer_log.h)
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

}  // namespace springtide
