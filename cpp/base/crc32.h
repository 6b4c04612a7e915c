// CRC-32 of zlib, gzip and Ethernet (polynomial 0xEDB88320), by the CPU's instruction where it has one.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

uint32_t crc32(std::span<const uint8_t> bytes);

// The same by tables, whatever the machine has: what the other is tested against.
uint32_t crc32_by_tables(std::span<const uint8_t> bytes);

}  // namespace springtide
