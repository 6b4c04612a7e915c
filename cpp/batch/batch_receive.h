// Receives one data worker message from a socket without the GIL: head, text and, if the header equals the
// expected one, the payload, straight into its final memory. In: dataworker/transport/channel.py. Next:
// bindings/batch/fused.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace springtide {

struct MessageHead {  // as it goes over the wire, little-endian
  static constexpr size_t kBytes = 28;
  std::byte bytes[kBytes];

  uint16_t flags() const;
  uint32_t fields() const;
  uint32_t header() const;
  uint64_t payload() const;
};

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

// Takes the next message off a blocking socket. Its payload is taken too if it is as expected and not in
// shared memory (flags 0); otherwise it is still to come.
ReceivedMessage receive_message(int socket, const Expected& expected);

}  // namespace springtide
