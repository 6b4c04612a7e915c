#include "batch/envelope.h"

#include <cstring>
#include <string>

#include "base/crc32.h"
#include "base/types.h"

namespace springtide {

namespace {

constexpr uint8_t kMark[4] = {0xF5, 'S', 'T', 1};
constexpr size_t kSize = 16;
constexpr size_t kCrcAt = 4;
constexpr size_t kTimeAt = 8;  // what the checksum covers begins here too

template <typename T>
T little_endian(const uint8_t* at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << (8 * i));
  return value;
}

std::span<const uint8_t> run(std::span<const uint8_t> payload, std::span<const int64_t> starts,
                             std::span<const int64_t> ends, size_t i) {
  const int64_t start = starts[i];
  const int64_t end = ends[i];
  if (start < 0 || end < start || static_cast<uint64_t>(end) > payload.size()) {
    throw BadInput("record " + std::to_string(i) + " is at bytes " + std::to_string(start) + " to " +
                   std::to_string(end) + " of " + std::to_string(payload.size()));
  }
  return payload.subspan(static_cast<size_t>(start), static_cast<size_t>(end - start));
}

}  // namespace

Envelopes open_envelopes(std::span<const uint8_t> payload, std::span<const int64_t> starts,
                         std::span<const int64_t> ends, uint8_t* states, int64_t* event_us) {
  Envelopes found;
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto record = run(payload, starts, ends, i);
    states[i] = kBare;
    event_us[i] = 0;
    if (record.size() < kSize || std::memcmp(record.data(), kMark, sizeof(kMark)) != 0) {
      ++found.bare;
      continue;
    }
    event_us[i] = static_cast<int64_t>(little_endian<uint64_t>(record.data() + kTimeAt));
    const bool whole = crc32(record.subspan(kTimeAt)) == little_endian<uint32_t>(record.data() + kCrcAt);
    states[i] = whole ? kWhole : kDamaged;
    if (!whole) ++found.damaged;
  }
  return found;
}

void crc32_each(std::span<const uint8_t> payload, std::span<const int64_t> starts, std::span<const int64_t> ends,
                uint32_t* out) {
  for (size_t i = 0; i < starts.size(); ++i) out[i] = crc32(run(payload, starts, ends, i));
}

}  // namespace springtide
