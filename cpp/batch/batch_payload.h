// Combines scattered buffers into one payload: copies them together, or sends them with few system calls. In: offsets
// from dataworker/transport/codec.py. Next: bindings/payload.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "net/socket.h"

namespace springtide {

struct Piece {
  uint64_t offset;  // offset in the payload; offsets ascend without overlap, with gaps of less than 64 bytes
  const std::byte* data;
  uint64_t size;
};

// True if the offsets of the pieces ascend, the pieces do not overlap and all end within `capacity`.
bool pieces_fit(std::span<const Piece> pieces, uint64_t capacity);

// Copies the pieces to their offsets. Bytes between pieces stay unchanged.
void gather(std::span<const Piece> pieces, std::byte* into);

// Sends `prefix` and then the payload, with zeros between the pieces, over a blocking socket or TLS. If `passed` is 0
// or more, this file descriptor is sent with the first byte. Returns 0 or an errno.
int send_pieces(Line line, std::span<const std::byte> prefix, std::span<const Piece> pieces, int passed);

// Receives one message of a data worker from a socket without the GIL: head, text and payload. If the header is the
// expected one, the payload goes straight into its final memory. In: dataworker/transport/channel.py. Next:
// bindings/payload.cpp.
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
  std::span<const std::byte> begins;  // first bytes of every valid head
  uint32_t most_fields, most_header;
  std::span<const std::byte> header;  // header of the batch for which memory is ready; empty if there is no such batch
  std::span<std::byte> into;          // memory for that batch's payload, of exactly its size
};

struct ReceivedMessage {
  enum class Progress : uint8_t { head, text, whole };  // head: the head is invalid, and nothing more was read
  Progress came = Progress::head;
  int error = 0;  // an errno, or -1 if the other side has closed
  MessageHead head = {};
  std::vector<std::byte> text;  // fields, then header
};

// Receives the next message. If the header is the expected one and the payload is not in shared memory, this includes
// the payload.
ReceivedMessage receive_message(int socket, const Expected& expected);

}  // namespace springtide
