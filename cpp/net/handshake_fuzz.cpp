// Sends arbitrary bytes in a handshake. A peer without the secret is always refused, with an error in one sentence.
#include <sys/socket.h>

#include "net/frame_io.h"
#include "net/handshake.h"
#include "testing/fuzz.h"

namespace springtide::handshake_fuzz {

namespace {

// The bytes as frames: each header gets a correct magic, version and check, unless the first byte says otherwise.
std::vector<uint8_t> as_frames(fuzz::Bytes bytes) {
  std::vector<uint8_t> sent;
  const bool sealed = fuzz::take<uint8_t>(bytes) % 8 != 0;
  while (sealed && bytes.size() >= sizeof(FrameHeader)) {
    auto header = fuzz::take<FrameHeader>(bytes);
    header.magic = kMagic, header.version = kVersion;
    header.body_bytes = std::min<uint64_t>(header.body_bytes % 200, bytes.size());
    seal(header);
    const auto* first = reinterpret_cast<const uint8_t*>(&header);
    sent.insert(sent.end(), first, first + sizeof header);
    sent.insert(sent.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header.body_bytes));
    bytes = bytes.subspan(header.body_bytes);
  }
  sent.insert(sent.end(), bytes.begin(), bytes.end());
  return sent;
}

template <class Side>
void against(std::span<const uint8_t> sent, Side side) {
  int ends[2];
  HOLDS(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd near(ends[0]), far(ends[1]);
  if (!sent.empty()) HOLDS(::send(far.get(), sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()));
  ::shutdown(far.get(), SHUT_WR);
  side(near.get());
}

}  // namespace

FUZZ(bytes) {
  const std::vector<uint8_t> sent = as_frames(bytes.first(std::min<size_t>(bytes.size(), 20000)));
  against(sent, [](int fd) {
    FrameHeader who;
    const std::string why = accept_handshake(fd, "secret", {}, who, [] {
      HOLDS(false);  // nobody has proved anything
      return std::string();
    });
    HOLDS(!why.empty() && why.size() < 8000);
  });
  against(sent, [](int fd) {
    try {
      offer_handshake(fd, "secret", {});
      HOLDS(false);
    } catch (const PeerLost&) {
    }
  });
}

}  // namespace springtide::handshake_fuzz
