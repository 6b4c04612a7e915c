#include "frame_io.h"

#include <cerrno>
#include <cstring>

namespace springtide {

Io send_frame(int fd, FrameHeader header, std::span<const uint8_t> body) {
  header.body_bytes = body.size();
  seal(header);
  std::vector<iovec> buffers = {{&header, sizeof header}};
  if (!body.empty()) buffers.push_back({const_cast<uint8_t*>(body.data()), body.size()});
  return send_all(fd, buffers);
}

FrameHeader reply_to(const FrameHeader& request) {
  FrameHeader reply;
  const bool known =
      request.kind >= static_cast<uint8_t>(Kind::hello) && request.kind <= static_cast<uint8_t>(Kind::last);
  reply.kind = known ? request.kind : static_cast<uint8_t>(Kind::hello);
  reply.flags = kReply;
  reply.request = request.request;
  return reply;
}

Io send_failure(int fd, const FrameHeader& request, Status status, const std::string& why) {
  FrameHeader reply = reply_to(request);
  reply.status = static_cast<uint16_t>(status);
  return send_frame(fd, reply, bytes_of(why));
}

Io receive_frame(int fd, FrameHeader& header, std::vector<uint8_t>& body, uint64_t limit, std::string& why) {
  Io io = receive_all(fd, &header, sizeof header);
  if (io != Io::ok) {
    why = describe(io);
    return io;
  }
  why = fault_in(header, limit);
  if (!why.empty()) return Io::ok;
  body.resize(header.body_bytes);
  if (body.empty()) return Io::ok;
  io = receive_all(fd, body.data(), body.size());
  if (io != Io::ok) why = describe(io);
  return io;
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string text_of(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

std::string describe(Io io) {
  switch (io) {
    case Io::ok:
      return "fine";
    case Io::closed:
      return "the connection was closed";
    case Io::torn:
      return "the connection broke in the middle of a frame";
    case Io::idle:
      return "nothing came in time";
    case Io::stalled:
      return "the other side stopped in the middle of a frame";
    case Io::failed:
      break;
  }
  return std::strerror(errno);
}

}  // namespace springtide
