#include "batch/batch_payload.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace springtide {

namespace {

// Returns 0, an errno, or -1 if the other side has closed.
int fill(int socket, std::byte* into, size_t size) {
  const Io io = receive_all(socket, into, size);
  return io == Io::ok ? 0 : io == Io::closed || io == Io::torn ? -1 : errno;
}

bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

constexpr size_t kGap = 64;
alignas(kGap) constexpr std::byte kZeros[kGap] = {};

iovec part(const std::byte* data, size_t size) {
  return {const_cast<std::byte*>(data), size};  // iovec is used for reading and writing, but sendmsg only reads
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
  if (passed >= 0) {
    const auto* first = reinterpret_cast<const uint8_t*>(prefix.data());
    if (send_with_fd(line.fd, {first, prefix.size()}, passed) != Io::ok) return errno;
    parts.erase(parts.begin());
  }
  return send_all(line, parts) == Io::ok ? 0 : errno != 0 ? errno : EPIPE;
}

ReceivedMessage receive_message(int socket, const Expected& expected) {
  ReceivedMessage taken;
  MessageHead& head = taken.head;
  taken.error = fill(socket, reinterpret_cast<std::byte*>(&head), sizeof head);
  if (taken.error != 0) return taken;
  const bool ours = expected.begins.size() <= sizeof head &&
                    same(expected.begins, head.bytes().first(expected.begins.size())) &&
                    head.fields <= expected.most_fields && head.header <= expected.most_header;
  if (!ours) return taken;
  taken.text.resize(size_t{head.fields} + head.header);
  taken.error = fill(socket, taken.text.data(), taken.text.size());
  if (taken.error != 0) return taken;
  taken.came = ReceivedMessage::Progress::text;
  const auto header = std::span<const std::byte>(taken.text).subspan(head.fields);
  if (head.flags != 0 || header.empty() || !same(header, expected.header)) return taken;
  if (head.payload != expected.into.size()) return taken;
  taken.error = fill(socket, expected.into.data(), head.payload);
  if (taken.error == 0) taken.came = ReceivedMessage::Progress::whole;
  return taken;
}

}  // namespace springtide
