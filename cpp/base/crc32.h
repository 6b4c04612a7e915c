// CRC-32 as zlib, gzip and Ethernet have it (polynomial 0xEDB88320): with the machine's own instruction where
// it has one, else by tables, eight bytes a step. In: bytes. Next: envelope.h.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

uint32_t crc32(std::span<const uint8_t> bytes);

// The same by tables, whatever the machine has: what the other is tested against.
uint32_t crc32_by_tables(std::span<const uint8_t> bytes);

}  // namespace springtide
