// Whatever a data worker sends: a message is taken apart within its limits, or its connection is given up.
#include <sys/socket.h>
#include <unistd.h>

#include "batch/batch_payload.h"
#include "testing/fuzz.h"

namespace springtide::batch_payload_fuzz {

FUZZ(bytes) {
  int ends[2];
  HOLDS(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  if (bytes.size() > 60000) bytes = bytes.first(60000);  // fits into the buffer of the socket
  const auto begins = std::as_bytes(std::span("STDB\1", 5));
  const auto header = std::as_bytes(std::span("header", 6));
  std::vector<std::byte> into(16);
  HOLDS(::send(ends[0], bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  ::close(ends[0]);
  for (int messages = 0; messages < 64; ++messages) {
    const ReceivedMessage got = receive_message(ends[1], {begins, 512, 512, header, into});
    HOLDS(got.text.size() <= 1024);
    if (got.came != ReceivedMessage::Progress::head) HOLDS(got.text.size() == got.head.fields + got.head.header);
    if (got.came == ReceivedMessage::Progress::whole) HOLDS(got.head.payload == into.size());
    if (got.error != 0 || got.came == ReceivedMessage::Progress::head) break;
  }
  ::close(ends[1]);
}

}  // namespace springtide::batch_payload_fuzz
