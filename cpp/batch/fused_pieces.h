// Scattered buffers as one payload: copied side by side, or sent with few system calls.
// In: offsets from dataworker/transport/codec.py. Next: bindings/batch/fused.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "net/socket.h"

namespace springtide {

struct Piece {
  uint64_t offset;  // in the payload; rising, no two overlap, less than 64 bytes between two
  const std::byte* data;
  uint64_t size;
};

// True if pieces rise, do not overlap and end within `capacity`.
bool pieces_fit(std::span<const Piece> pieces, uint64_t capacity);

// Copies them to their places; what lies between them is left as it is.
void gather(std::span<const Piece> pieces, std::byte* into);

// Sends `prefix`, then the payload with zeros between the pieces, over a blocking socket or TLS. Where
// `passed` is 0 or more, that file descriptor goes along with the first byte. Returns 0, or the errno of what
// went wrong.
int send_pieces(Line line, std::span<const std::byte> prefix, std::span<const Piece> pieces, int passed);

}  // namespace springtide
