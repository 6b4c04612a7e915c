#include "batch/envelope.h"

#include <array>
#include <cstring>

#include "base/types.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define SPRINGTIDE_ARM_CRC 1
#endif

namespace springtide {

namespace {

template <typename T>
T value_at(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);  // the machine is little-endian: wire.h asserts it
  return value;
}

constexpr uint32_t kPolynomial = 0xEDB88320U;

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
    tables[0][byte] = value;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t i = 1; i < 8; ++i) {
      const uint32_t before = tables[i - 1][byte];
      tables[i][byte] = (before >> 8) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

constexpr Tables kCrcTables = make_tables();

#ifdef SPRINGTIDE_ARM_CRC
constexpr unsigned long kHasCrc = 1UL << 7;  // HWCAP_CRC32

__attribute__((target("+crc"))) uint32_t by_instruction(std::span<const uint8_t> bytes) {
  uint32_t value = 0xFFFFFFFFU;
  const uint8_t* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    value = __crc32d(value, value_at<uint64_t>(at));
  }
  for (; left > 0; ++at, --left) value = __crc32b(value, *at);
  return ~value;
}
#endif

constexpr uint8_t kMark[4] = {0xF5, 'S', 'T', 1};
constexpr size_t kSize = 16;
constexpr size_t kCrcAt = 4;
constexpr size_t kTimeAt = 8;  // the checksum covers all bytes from here on

std::span<const uint8_t> run(std::span<const uint8_t> payload, std::span<const int64_t> starts,
                             std::span<const int64_t> ends, size_t i) {
  const int64_t start = starts[i];
  const int64_t end = ends[i];
  throw_if<BadInput>(start < 0 || end < start || static_cast<uint64_t>(end) > payload.size(), "record ", i,
                     " is at bytes ", start, " to ", end, " of ", payload.size());
  return payload.subspan(static_cast<size_t>(start), static_cast<size_t>(end - start));
}

}  // namespace

uint32_t crc32_by_tables(std::span<const uint8_t> bytes) {
  uint32_t value = 0xFFFFFFFFU;
  const uint8_t* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    const uint32_t low = value ^ value_at<uint32_t>(at);
    value = kCrcTables[7][low & 0xFFU] ^ kCrcTables[6][(low >> 8) & 0xFFU] ^ kCrcTables[5][(low >> 16) & 0xFFU] ^
            kCrcTables[4][low >> 24] ^ kCrcTables[3][at[4]] ^ kCrcTables[2][at[5]] ^ kCrcTables[1][at[6]] ^
            kCrcTables[0][at[7]];
  }
  for (; left > 0; ++at, --left) value = (value >> 8) ^ kCrcTables[0][(value ^ *at) & 0xFFU];
  return ~value;
}

uint32_t crc32(std::span<const uint8_t> bytes) {
#ifdef SPRINGTIDE_ARM_CRC
  static const bool has = (getauxval(AT_HWCAP) & kHasCrc) != 0;
  if (has) return by_instruction(bytes);
#endif
  return crc32_by_tables(bytes);
}

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
    event_us[i] = static_cast<int64_t>(value_at<uint64_t>(record.data() + kTimeAt));
    const bool whole = crc32(record.subspan(kTimeAt)) == value_at<uint32_t>(record.data() + kCrcAt);
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
