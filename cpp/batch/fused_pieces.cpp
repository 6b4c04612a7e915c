#include "batch/fused_pieces.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace springtide {

namespace {

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
  for (size_t next = 0; next < parts.size();) {
    msghdr message = {};
    message.msg_iov = &parts[next];
    message.msg_iovlen = std::min(kMostParts, parts.size() - next);
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
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    passed = -1;
    size_t left = static_cast<size_t>(sent);
    while (next < parts.size() && left >= parts[next].iov_len) left -= parts[next++].iov_len;
    if (left > 0) {
      parts[next].iov_base = static_cast<std::byte*>(parts[next].iov_base) + left;
      parts[next].iov_len -= left;
    }
  }
  return 0;
}

}  // namespace springtide
