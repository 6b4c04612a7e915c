#include "batch/batch_payload.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace springtide {

namespace {

template <typename Number>
Number number_at(const std::byte* from) {
  Number found;
  std::memcpy(&found, from, sizeof(found));
  return found;
}

// 0, an errno, or -1 when the other side has closed.
int fill(int socket, std::byte* into, size_t size) {
  const Io io = receive_all(socket, into, size);
  return io == Io::ok ? 0 : io == Io::closed || io == Io::torn ? -1 : errno;
}

bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

constexpr size_t kMostParts = 1024;  // IOV_MAX of Linux
constexpr size_t kGap = 64;
alignas(kGap) constexpr std::byte kZeros[kGap] = {};

iovec part(const std::byte* data, size_t size) {
  return {const_cast<std::byte*>(data), size};  // iovec serves reading and writing; sendmsg only reads
}

std::vector<iovec> parts_of(std::span<const std::byte> prefix, std::span<const Piece> pieces) {
  std::vector<iovec> parts;
  parts.reserve(1 + 2 * pieces.size());
  parts.push_back(part(prefix.data(), prefix.size()));
  uint64_t written = 0;
  for (const Piece& piece : pieces) {
    for (; written < piece.offset; written += std::min<uint64_t>(kGap, piece.offset - written)) {
      parts.push_back(part(kZeros, std::min<uint64_t>(kGap, piece.offset - written)));
    }
    parts.push_back(part(piece.data, piece.size));
    written = piece.offset + piece.size;
  }
  return parts;
}

}  // namespace

bool pieces_fit(std::span<const Piece> pieces, uint64_t capacity) {
  uint64_t written = 0;
  for (const Piece& piece : pieces) {
    if (piece.offset < written || piece.offset > capacity || piece.size > capacity - piece.offset) return false;
    written = piece.offset + piece.size;
  }
  return true;
}

void gather(std::span<const Piece> pieces, std::byte* into) {
  for (const Piece& piece : pieces) std::memcpy(into + piece.offset, piece.data, piece.size);
}

int send_pieces(Line line, std::span<const std::byte> prefix, std::span<const Piece> pieces, int passed) {
  std::vector<iovec> parts = parts_of(prefix, pieces);
  if (line.tls != nullptr) return send_all(line, parts) == Io::ok ? 0 : (errno != 0 ? errno : EPIPE);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  while (!parts.empty()) {
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = std::min(kMostParts, parts.size());
    if (passed >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &passed, sizeof(int));
    }
    const ssize_t sent = ::sendmsg(line.fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno;
    passed = -1;
    advance(parts, static_cast<size_t>(sent));
  }
  return 0;
}

uint16_t MessageHead::flags() const { return number_at<uint16_t>(bytes + 6); }
uint32_t MessageHead::fields() const { return number_at<uint32_t>(bytes + 8); }
uint32_t MessageHead::header() const { return number_at<uint32_t>(bytes + 12); }
uint64_t MessageHead::payload() const { return number_at<uint64_t>(bytes + 16); }

ReceivedMessage receive_message(int socket, const Expected& expected) {
  ReceivedMessage taken;
  MessageHead& head = taken.head;
  taken.error = fill(socket, head.bytes, MessageHead::kBytes);
  if (taken.error != 0) return taken;
  const bool ours = expected.begins.size() <= MessageHead::kBytes &&
                    same(expected.begins, {head.bytes, expected.begins.size()}) &&
                    head.fields() <= expected.most_fields && head.header() <= expected.most_header;
  if (!ours) return taken;
  taken.text.resize(size_t{head.fields()} + head.header());
  taken.error = fill(socket, taken.text.data(), taken.text.size());
  if (taken.error != 0) return taken;
  taken.came = ReceivedMessage::Progress::text;
  const auto header = std::span<const std::byte>(taken.text).subspan(head.fields());
  if (head.flags() != 0 || header.empty() || !same(header, expected.header)) return taken;
  if (head.payload() != expected.into.size()) return taken;
  taken.error = fill(socket, expected.into.data(), head.payload());
  if (taken.error == 0) taken.came = ReceivedMessage::Progress::whole;
  return taken;
}

}  // namespace springtide
