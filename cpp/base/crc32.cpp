#include "base/crc32.h"

#include <array>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define SPRINGTIDE_ARM_CRC 1
#endif

namespace springtide {

namespace {

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

constexpr Tables kTables = make_tables();

#ifdef SPRINGTIDE_ARM_CRC
constexpr unsigned long kHasCrc = 1UL << 7;  // HWCAP_CRC32

__attribute__((target("+crc"))) uint32_t by_instruction(std::span<const uint8_t> bytes) {
  uint32_t value = 0xFFFFFFFFU;
  const uint8_t* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    value = __crc32d(value, word);
  }
  for (; left > 0; ++at, --left) value = __crc32b(value, *at);
  return ~value;
}
#endif

}  // namespace

uint32_t crc32_by_tables(std::span<const uint8_t> bytes) {
  uint32_t value = 0xFFFFFFFFU;
  const uint8_t* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    const uint32_t low = value ^ (static_cast<uint32_t>(at[0]) | static_cast<uint32_t>(at[1]) << 8 |
                                  static_cast<uint32_t>(at[2]) << 16 | static_cast<uint32_t>(at[3]) << 24);
    value = kTables[7][low & 0xFFU] ^ kTables[6][(low >> 8) & 0xFFU] ^ kTables[5][(low >> 16) & 0xFFU] ^
            kTables[4][low >> 24] ^ kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^ kTables[0][at[7]];
  }
  for (; left > 0; ++at, --left) value = (value >> 8) ^ kTables[0][(value ^ *at) & 0xFFU];
  return ~value;
}

uint32_t crc32(std::span<const uint8_t> bytes) {
#ifdef SPRINGTIDE_ARM_CRC
  static const bool has = (getauxval(AT_HWCAP) & kHasCrc) != 0;
  if (has) return by_instruction(bytes);
#endif
  return crc32_by_tables(bytes);
}

}  // namespace springtide
