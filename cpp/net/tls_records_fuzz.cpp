// Whatever arrives on a connection with TLS, only the text of records that the other side has sealed comes out, in its
// order. Input: steps of a byte each, with what they need: text to seal, a record of any kind, a new key, or raw bytes.
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "net/tls_session.h"
#include "testing/fuzz.h"

namespace springtide::tls_records_fuzz {

namespace {

constexpr size_t kMostSent = 100'000;  // fits into a socket's buffer

Digest secret_of(uint8_t byte) {
  Digest secret;
  secret.fill(byte);
  return secret;
}

// What is sent, and the text of its data records.
struct Sent {
  RecordCipher cipher{secret_of(1), RecordCipher::Way::seals};
  std::vector<uint8_t> bytes, text;
  bool whole = true;  // true if all of the text must arrive

  size_t seal(RecordKind kind, fuzz::Bytes from) {
    const size_t at = bytes.size();
    bytes.resize(at + kSealed);
    const size_t made = cipher.seal(kind, from.data(), from.size(), bytes.data() + at);
    bytes.resize(at + made);
    return made;
  }
  void note(fuzz::Bytes part) { text.insert(text.end(), part.begin(), part.end()); }
  // A record of any kind. Zeros at its end are padding, and its kind is the last byte before them.
  void seal_any(uint8_t kind, fuzz::Bytes part) {
    seal(static_cast<RecordKind>(kind), part);
    while (kind == 0 && !part.empty()) {
      kind = part.back();
      part = part.first(part.size() - 1);
    }
    if (kind == static_cast<uint8_t>(RecordKind::data)) return note(part);
    whole = false;
  }
  void step(uint8_t what, fuzz::Bytes part) {
    const uint8_t more = what / 8;
    switch (what % 8) {
      case 0:
        whole = false;
        bytes.insert(bytes.end(), part.begin(), part.end());
        return;
      case 1: {  // a record that is altered on its way
        whole = false;
        const size_t made = seal(RecordKind::data, part);
        bytes[bytes.size() - made + more % made] ^= 1;
        return;
      }
      case 2:
        return seal_any(static_cast<uint8_t>(RecordKind::handshake), part);
      case 3:
        return seal_any(more, part);
      case 4: {
        const std::array<uint8_t, 5> update{24, 0, 0, 1, static_cast<uint8_t>(more % 2)};
        seal(RecordKind::handshake, update);
        cipher.take_next_key();
        return;
      }
      default:
        seal(RecordKind::data, part);
        note(part);
    }
  }
};

}  // namespace

FUZZ(bytes) {
  const auto settings = fuzz::take<uint8_t>(bytes);
  Sent sent;
  while (bytes.size() > 2 && sent.bytes.size() + kSealed < kMostSent) {
    const auto what = fuzz::take<uint8_t>(bytes);
    const size_t wanted = fuzz::take<uint8_t>(bytes) * (settings % 8 + 1U);
    const size_t size = std::min(wanted, bytes.size());
    sent.step(what, bytes.first(size));
    bytes = bytes.subspan(size);
  }
  int ends[2];
  HOLDS(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd near(ends[0]), far(ends[1]);
  HOLDS(::send(far.get(), sent.bytes.data(), sent.bytes.size(), 0) == static_cast<ssize_t>(sent.bytes.size()));
  ::shutdown(far.get(), SHUT_WR);
  TlsSession session(near.get(), {secret_of(1), secret_of(2)}, (settings & 8) != 0);
  std::vector<uint8_t> received, out(1 + settings / 16 * 37);
  Io io = Io::ok;
  while ((io = session.receive(out.data(), out.size())) == Io::ok) {
    received.insert(received.end(), out.begin(), out.end());
    HOLDS(received.size() <= kMostSent);
  }
  HOLDS(received.size() <= sent.text.size() && std::equal(received.begin(), received.end(), sent.text.begin()));
  HOLDS(!sent.whole || (io != Io::failed && sent.text.size() - received.size() < out.size()));
  HOLDS(io != Io::failed || !session.why().empty());
  std::vector<iovec> reply{{out.data(), out.size()}};
  HOLDS(session.send(reply, true) != Io::ok || reply.empty());
}

}  // namespace springtide::tls_records_fuzz
