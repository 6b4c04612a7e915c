// Records of a stream, with or without an envelope, are judged within their bytes, whatever the bounds say.
#include <vector>

#include "base/types.h"
#include "batch/envelope.h"
#include "testing/fuzz.h"

namespace springtide::envelope_fuzz {

FUZZ(bytes) {
  const size_t count = fuzz::take<uint8_t>(bytes) % 9;
  std::vector<int64_t> starts, ends;
  for (size_t i = 0; i < count; ++i) {
    starts.push_back(fuzz::take<int16_t>(bytes));
    ends.push_back(starts.back() + fuzz::take<int16_t>(bytes));
  }
  const std::vector<uint8_t> payload(bytes.begin(), bytes.end());  // a block of its own, so that its end is guarded
  std::vector<uint8_t> states(count, 99);
  std::vector<int64_t> times(count);
  std::vector<uint32_t> sums(count);
  HOLDS(crc32(payload) == crc32_by_tables(payload));
  try {
    const Envelopes seen = open_envelopes(payload, starts, ends, states.data(), times.data());
    uint64_t bare = 0, damaged = 0;
    for (size_t i = 0; i < count; ++i) {
      HOLDS(states[i] <= kDamaged && (states[i] != kBare || times[i] == 0));
      bare += states[i] == kBare, damaged += states[i] == kDamaged;
    }
    HOLDS(seen.bare == bare && seen.damaged == damaged);
    crc32_each(payload, starts, ends, sums.data());
    for (size_t i = 0; i < count; ++i) {
      const auto first = static_cast<size_t>(starts[i]), size = static_cast<size_t>(ends[i] - starts[i]);
      HOLDS(sums[i] == crc32(std::span<const uint8_t>(payload).subspan(first, size)));
    }
  } catch (const BadInput&) {
    bool wrong = false;
    for (size_t i = 0; i < count; ++i) {
      wrong |= starts[i] < 0 || ends[i] < starts[i] || ends[i] > static_cast<int64_t>(payload.size());
    }
    HOLDS(wrong);
  }
}

}  // namespace springtide::envelope_fuzz
