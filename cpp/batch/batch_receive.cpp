#include "batch/batch_receive.h"

#include <sys/socket.h>

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

int fill(int socket, std::byte* into, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t came = ::recv(socket, into + done, size - done, MSG_WAITALL);
    if (came == 0) return -1;
    if (came < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    done += static_cast<size_t>(came);
  }
  return 0;
}

bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace

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
