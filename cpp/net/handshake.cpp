#include "net/handshake.h"

#include <sys/random.h>

#include <cstring>

#include "base/sha256.h"
#include "net/frame_io.h"

namespace springtide {

namespace {

constexpr size_t kNonce = 32;

Digest prove(const std::string& secret, const std::string& side, std::span<const uint8_t> first,
             std::span<const uint8_t> second) {
  std::vector<uint8_t> message(side.begin(), side.end());
  message.insert(message.end(), first.begin(), first.end());
  message.insert(message.end(), second.begin(), second.end());
  return hmac_sha256(bytes_of(secret), message);
}

Digest digest_at(std::span<const uint8_t> bytes) {
  Digest digest;
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

// Receives the next frame of the handshake and checks its kind and size.
std::vector<uint8_t> expect(Line line, Kind kind, size_t bytes, FrameHeader& header, std::string& why, Io& io) {
  std::vector<uint8_t> body;
  io = receive_frame(line, header, body, kHandshakeBytes, why);
  if (io != Io::ok || !why.empty()) return body;
  if (header.status != static_cast<uint16_t>(Status::ok)) {
    why = body.empty() ? "it refused without a reason" : text_of(body);
  } else if (header.kind != static_cast<uint8_t>(kind) || body.size() != bytes) {
    why = concat("a ", name_of(static_cast<Kind>(header.kind)), " of ", body.size(), " bytes came where a ",
                 name_of(kind), " of ", bytes, " was due");
  }
  return body;
}

// On the client, an error reply of the server is permanent (except `busy`), and a broken connection is not.
void raise(const FrameHeader& header, const std::string& why) {
  if (why.empty()) return;
  const bool other_version = header.magic == kMagic && header.version != kVersion;
  const bool final =
      header.status != static_cast<uint16_t>(Status::ok) && header.status != static_cast<uint16_t>(Status::busy);
  if (other_version || final) throw HandshakeRefused(why);
  throw PeerLost(why);
}

// Sends the reason to the peer, if it is still connected.
std::string refuse(Line line, const FrameHeader& header, Status status, const std::string& why) {
  send_failure(line, header, status, why);
  return why;
}

}  // namespace

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  size_t have = 0;
  while (have < count) {
    const ssize_t got = getrandom(bytes.data() + have, count - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return bytes;
}

std::string accept_handshake(Line line, const std::string& secret, const Welcome& welcome, FrameHeader& who,
                             const std::function<std::string()>& busy) {
  std::string why;
  Io io = Io::ok;
  const std::vector<uint8_t> theirs = expect(line, Kind::hello, kNonce, who, why, io);
  if (!why.empty()) return refuse(line, who, io == Io::ok ? Status::refused : Status::busy, why);

  const std::string ours = random_bytes(kNonce);
  const Digest proof = prove(secret, "springtide server", theirs, bytes_of(ours));
  std::vector<uint8_t> challenge(ours.begin(), ours.end());
  challenge.insert(challenge.end(), proof.begin(), proof.end());
  FrameHeader header = reply_to(who);
  header.kind = static_cast<uint8_t>(Kind::challenge);
  if (send_frame(line, header, challenge) != Io::ok) return "the connection broke during the handshake";

  FrameHeader answer;
  const std::vector<uint8_t> body = expect(line, Kind::proof, sizeof(Digest), answer, why, io);
  if (!why.empty()) return refuse(line, answer, io == Io::ok ? Status::refused : Status::busy, why);
  if (!same_digest(digest_at(body), prove(secret, "springtide client", bytes_of(ours), theirs))) {
    return refuse(line, answer, Status::refused, "the client does not know this job's secret");
  }
  if (why = busy(); !why.empty()) return refuse(line, answer, Status::busy, why);
  header.kind = static_cast<uint8_t>(Kind::welcome);
  const auto* terms = reinterpret_cast<const uint8_t*>(&welcome);
  if (send_frame(line, header, {terms, sizeof welcome}) != Io::ok) return "the connection broke during the handshake";
  return {};
}

Welcome offer_handshake(Line line, const std::string& secret, FrameHeader who) {
  const std::string ours = random_bytes(kNonce);
  who.kind = static_cast<uint8_t>(Kind::hello);
  if (const Io io = send_frame(line, who, bytes_of(ours)); io != Io::ok) throw PeerLost(describe(io, line));

  std::string why;
  FrameHeader header;
  Io io = Io::ok;
  const std::vector<uint8_t> challenge = expect(line, Kind::challenge, kNonce + sizeof(Digest), header, why, io);
  raise(header, why);
  const std::span<const uint8_t> theirs = std::span(challenge).first(kNonce);
  throw_if<HandshakeRefused>(!same_digest(digest_at(std::span(challenge).subspan(kNonce)),
                                          prove(secret, "springtide server", bytes_of(ours), theirs)),
                             "it does not know this job's secret: a server of another job, or a stale address");
  const Digest proof = prove(secret, "springtide client", theirs, bytes_of(ours));
  who.kind = static_cast<uint8_t>(Kind::proof);
  if (const Io io = send_frame(line, who, proof); io != Io::ok) throw PeerLost(describe(io, line));

  const std::vector<uint8_t> body = expect(line, Kind::welcome, sizeof(Welcome), header, why, io);
  raise(header, why);
  Welcome welcome;
  std::memcpy(&welcome, body.data(), sizeof welcome);
  welcome.local_name.back() = '\0';
  return welcome;
}

Fd connect_on_host(const Welcome& terms, const std::string& secret, const FrameHeader& who, double timeout_s) {
  if (terms.local_name[0] == '\0') return Fd();
  Fd local = connect_local(terms.local_name.data());
  if (!local) return Fd();  // the peer is on another host, or in another network namespace
  set_timeouts(local.get(), timeout_s, timeout_s);
  try {
    return offer_handshake(local.get(), secret, who).instance == terms.instance ? std::move(local) : Fd();
  } catch (const PeerLost&) {  // another process uses this name
    return Fd();
  }
}

bool share_window(int fd, FrameHeader who, const Window& window) {
  const uint64_t bytes = window.size();
  who.kind = static_cast<uint8_t>(Kind::window);
  who.body_bytes = sizeof bytes;
  seal(who);
  std::vector<iovec> out = {{&who, sizeof who}};
  const auto* body = reinterpret_cast<const uint8_t*>(&bytes);
  if (send_all(fd, out) != Io::ok || send_with_fd(fd, {body, sizeof bytes}, window.fd()) != Io::ok) return false;
  FrameHeader answer;
  std::vector<uint8_t> rest;
  std::string why;
  return receive_frame(fd, answer, rest, kHandshakeBytes, why) == Io::ok && why.empty() &&
         answer.status == static_cast<uint16_t>(Status::ok);
}

}  // namespace springtide
