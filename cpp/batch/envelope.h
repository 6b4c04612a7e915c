// Validates the envelopes of stream records: presence, checksum, event time. Layout: springtide/data/stream/records.py.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

// CRC-32 of zlib, gzip and Ethernet (polynomial 0xEDB88320). Uses the CPU's instruction if there is one.
uint32_t crc32(std::span<const uint8_t> bytes);

// The same checksum, computed with tables on any CPU. Tests compare crc32() with this function.
uint32_t crc32_by_tables(std::span<const uint8_t> bytes);

enum EnvelopeState : uint8_t { kBare = 0, kWhole = 1, kDamaged = 2 };

struct Envelopes {
  uint64_t bare = 0;     // records without an envelope
  uint64_t damaged = 0;  // records with a wrong checksum
};

// Record i is payload[starts[i], ends[i]). `states` and `event_us` have room for all records. The time of a record
// without an envelope is 0. Throws BadInput if a record is not within the payload.
Envelopes open_envelopes(std::span<const uint8_t> payload, std::span<const int64_t> starts,
                         std::span<const int64_t> ends, uint8_t* states, int64_t* event_us);

// CRC-32 of each record. Throws BadInput if a record is not within the payload.
void crc32_each(std::span<const uint8_t> payload, std::span<const int64_t> starts, std::span<const int64_t> ends,
                uint32_t* out);

}  // namespace springtide
