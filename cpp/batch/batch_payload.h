// Scattered buffers as one payload: copied side by side, or sent with few system calls.
// In: offsets from dataworker/transport/codec.py. Next: bindings/payload.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

// Sends `prefix`, then the payload with zeros between the pieces, over a blocking socket or TLS. Where `passed` is 0 or
// more, that file descriptor goes along with the first byte. Returns 0, or the errno of what went wrong.
int send_pieces(Line line, std::span<const std::byte> prefix, std::span<const Piece> pieces, int passed);

// Receives one data worker message from a socket without the GIL: head, text and, if the header equals the expected
// one, the payload, straight into its final memory. In: dataworker/transport/channel.py. Next: bindings/payload.cpp.
#pragma pack(push, 1)
struct MessageHead {  // as on the wire, little-endian
  std::byte magic[4];
  uint8_t version, kind;
  uint16_t flags;
  uint32_t fields, header;  // bytes
  uint64_t payload;         // bytes
  uint32_t number;

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
};
#pragma pack(pop)
static_assert(sizeof(MessageHead) == 28);

struct Expected {
  std::span<const std::byte> begins;  // what every head of ours begins with
  uint32_t most_fields, most_header;
  std::span<const std::byte> header;  // of a batch for which there is memory already; empty: of none
  std::span<std::byte> into;          // as long as its payload
};

struct ReceivedMessage {
  enum class Progress : uint8_t { head, text, whole };  // head: no more was read, it is not one of ours
  Progress came = Progress::head;
  int error = 0;  // an errno; -1: the other side has closed
  MessageHead head = {};
  std::vector<std::byte> text;  // fields, then header
};

// Receives the next message; the payload too if its header is the expected one and it is not in shared memory.
ReceivedMessage receive_message(int socket, const Expected& expected);

}  // namespace springtide
