#include "net/frame_io.h"

#include <cerrno>
#include <cstring>

#include "net/tls_session.h"

namespace springtide {

Io send_frame(Line line, FrameHeader header, std::span<const uint8_t> body) {
  header.body_bytes = body.size();
  seal(header);
  std::vector<iovec> buffers = {{&header, sizeof header}};
  if (!body.empty()) buffers.push_back({const_cast<uint8_t*>(body.data()), body.size()});
  return send_all(line, buffers);
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

Io send_failure(Line line, const FrameHeader& request, Status status, const std::string& why) {
  FrameHeader reply = reply_to(request);
  reply.status = static_cast<uint16_t>(status);
  return send_frame(line, reply, bytes_of(why));
}

Io receive_frame(Line line, FrameHeader& header, std::vector<uint8_t>& body, uint64_t limit, std::string& why) {
  Io io = receive_all(line, &header, sizeof header);
  if (io != Io::ok) {
    why = describe(io, line);
    return io;
  }
  why = header_error(header, limit);
  if (!why.empty()) return Io::ok;
  body.resize(header.body_bytes);
  if (body.empty()) return Io::ok;
  io = receive_all(line, body.data(), body.size());
  if (io != Io::ok) why = describe(io, line);
  return io;
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string text_of(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

std::string describe(Io io, Line line) {
  const int error = errno;
  if (io == Io::ok) return "fine";
  if (io == Io::closed) return "the connection was closed";
  if (io == Io::torn) return "the connection broke in the middle of a frame";
  if (io == Io::idle) return "nothing arrived in time";
  if (io == Io::stalled) return "the other side stopped in the middle of a frame";
  if (line.tls != nullptr && !line.tls->why().empty()) return line.tls->why();
  return std::strerror(error);
}

}  // namespace springtide
