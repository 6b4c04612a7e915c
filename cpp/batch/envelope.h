// Validates the envelopes of stream records: presence, checksum, event time. Layout: springtide/data/stream/records.py.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

// CRC-32 of zlib, gzip and Ethernet (polynomial 0xEDB88320), by the CPU's instruction where it has one.
uint32_t crc32(std::span<const uint8_t> bytes);

// The same by tables, whatever the machine has: what the other is tested against.
uint32_t crc32_by_tables(std::span<const uint8_t> bytes);

enum EnvelopeState : uint8_t { kBare = 0, kWhole = 1, kDamaged = 2 };

struct Envelopes {
  uint64_t bare = 0;     // records without one
  uint64_t damaged = 0;  // records whose checksum does not fit
};

// Record i is payload[starts[i], ends[i]). `states` and `event_us` have room for all; the time of a bare one
// is 0. Throws BadInput when a record is not within the payload.
Envelopes open_envelopes(std::span<const uint8_t> payload, std::span<const int64_t> starts,
                         std::span<const int64_t> ends, uint8_t* states, int64_t* event_us);

// CRC-32 of each run of bytes; the same refusal.
void crc32_each(std::span<const uint8_t> payload, std::span<const int64_t> starts, std::span<const int64_t> ends,
                uint32_t* out);

}  // namespace springtide
