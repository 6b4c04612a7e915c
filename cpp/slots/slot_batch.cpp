#include "slots/slot_batch.h"

#include <cstring>

#include "base/types.h"

namespace springtide {
namespace {

struct PartHead {
  uint64_t slot, transfer, bytes;
};

[[noreturn]] void torn() { throw BadInput("a batch of slots is cut short or damaged"); }

template <class T>
T take(std::span<const uint8_t>& rest) {
  T value;
  if (rest.size() < sizeof value) torn();
  std::memcpy(&value, rest.data(), sizeof value);
  rest = rest.subspan(sizeof value);
  return value;
}

}  // namespace

void BatchWriter::begin(uint16_t slot, uint64_t transfer) {
  const PartHead head{slot, transfer, 0};
  const auto* from = reinterpret_cast<const uint8_t*>(&head);
  bytes_.insert(bytes_.end(), from, from + sizeof head);
  began_ = bytes_.size();
}

void BatchWriter::add(std::span<const uint8_t> image) { bytes_.insert(bytes_.end(), image.begin(), image.end()); }

void BatchWriter::end() {
  const uint64_t size = bytes_.size() - began_;
  std::memcpy(bytes_.data() + began_ - sizeof size, &size, sizeof size);
}

SlotBatch decode_batch(std::span<const uint8_t> rest) {
  SlotBatch batch;
  batch.by_reference = take<uint8_t>(rest) != 0;
  while (!rest.empty()) {
    const auto head = take<PartHead>(rest);
    if (head.slot > UINT16_MAX || head.bytes > rest.size()) torn();
    batch.parts.push_back({static_cast<uint16_t>(head.slot), head.transfer, rest.first(head.bytes)});
    rest = rest.subspan(head.bytes);
  }
  return batch;
}

std::vector<uint8_t> encode(const BatchAnswer& answer) {
  const auto count = static_cast<uint32_t>(answer.taken.size());
  std::vector<uint8_t> bytes(sizeof count + count * sizeof(uint16_t));
  std::memcpy(bytes.data(), &count, sizeof count);
  if (count != 0) std::memcpy(bytes.data() + sizeof count, answer.taken.data(), count * sizeof(uint16_t));
  bytes.insert(bytes.end(), answer.why.begin(), answer.why.end());
  return bytes;
}

BatchAnswer decode_answer(std::span<const uint8_t> rest) {
  BatchAnswer answer;
  const auto count = take<uint32_t>(rest);
  if (count > rest.size() / sizeof(uint16_t)) torn();
  for (uint32_t i = 0; i < count; ++i) answer.taken.push_back(take<uint16_t>(rest));
  answer.why.assign(rest.begin(), rest.end());
  return answer;
}

}  // namespace springtide
