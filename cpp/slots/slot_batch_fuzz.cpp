// Any bytes are refused as slots in one frame, or come apart within these bytes and together again.
#include "slots/slot_batch.h"
#include "testing/fuzz.h"

namespace springtide::slot_batch_fuzz {

FUZZ(bytes) {
  try {
    const SlotBatch batch = decode_batch(bytes);
    BatchWriter writer(batch.by_reference);
    for (const SlotBatch::Part& part : batch.parts) {
      writer.begin(part.slot, part.transfer);
      writer.add(part.bytes);
      writer.end();
    }
    HOLDS(writer.bytes().size() == bytes.size());
    HOLDS(std::equal(bytes.begin() + 1, bytes.end(), writer.bytes().begin() + 1));
    for (const SlotBatch::Part& part : batch.parts) {
      try {
        std::vector<uint8_t> again;
        encode(decode_reference(part.bytes), again);
        HOLDS(std::equal(again.begin(), again.end(), part.bytes.begin(), part.bytes.end()));
      } catch (const BadInput&) {
      }
    }
  } catch (const BadInput&) {
  }
  try {
    const std::vector<uint8_t> again = encode(decode_answer(bytes));
    HOLDS(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  } catch (const BadInput&) {
  }
}

}  // namespace springtide::slot_batch_fuzz
