#include "server/connection.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "net/frame_io.h"

namespace springtide {
namespace {

constexpr uint64_t kKeepBytes = 64 << 20;       // a buffer grown past this by one large frame is given back
constexpr uint64_t kWindowBytes = 64ULL << 30;  // address space that one client may ask us to map

}  // namespace

void Connection::serve(const Welcome& terms) {
  if (!local_) tune_tcp(link_.get());
  if (!greeted(terms)) {
    ++state_.count.refused;
    close_gently(link_.get());
  } else {
    serve_member();
  }
  if (has_place_) --state_.count.connections;
}

// It has proved the secret, and is no stranger from here on. Why there is no place for it; empty: there was.
std::string Connection::take_place() {
  if (!state_.handshakes.end(ticket_)) return "the handshake took too long, or others were faster; try again";
  const uint32_t most = state_.options.max_connections;
  has_place_ = state_.count.connections++ < most;
  if (has_place_) return {};
  --state_.count.connections;
  return "the server has its " + std::to_string(most) + " connections already";
}

void Connection::serve_member() {
  ++state_.count.accepted;
  set_timeouts(link_.line(), state_.options.stall_s, state_.options.stall_s);
  RequestHandler handler(state_, link_.line());
  try {
    while (next(handler)) {
    }
  } catch (const std::bad_alloc&) {  // a frame larger than the memory there is: this client loses its connection
    ++state_.count.bad_frames;
  }
}

// Certificates first, where the job has some; within this host there is nobody to hide from.
bool Connection::greeted(const Welcome& terms) {
  const double patience_s = state_.options.handshake_s;
  try {
    if (!local_) link_.begin({state_.options.tls, TlsSide::listener, "", patience_s});
  } catch (const HandshakeRefused& e) {  // in the clear, for those who know no better
    set_timeouts(link_.get(), patience_s, patience_s);
    send_failure(link_.get(), {}, Status::refused, std::string("this job has TLS, and ") + e.what());
    return false;
  } catch (const std::runtime_error&) {
    return false;
  }
  set_timeouts(link_.line(), patience_s, patience_s);
  FrameHeader who;
  return accept_handshake(link_.line(), state_.options.secret, terms, who, [this] { return take_place(); }).empty();
}

bool Connection::next(RequestHandler& handler) {
  FrameHeader header;
  const Io io = receive_all(link_.line(), &header, sizeof header);
  if (io == Io::idle) return !state_.stopping;  // silence between frames is fine
  if (io != Io::ok) return lost(io);
  if (const std::string why = header_error(header, state_.options.max_frame_bytes); !why.empty()) {
    return misbehaved(header, why);
  }
  if (header.kind == static_cast<uint8_t>(Kind::window)) return receive_window(header, handler);
  std::span<const uint8_t> body;
  if (!receive_body(header, handler, body)) return false;
  if (!handler.handle(header, body)) return false;
  if (capacity_ > kKeepBytes) {
    buffer_.reset();
    capacity_ = 0;
  }
  return true;
}

bool Connection::receive_body(const FrameHeader& header, RequestHandler& handler, std::span<const uint8_t>& body) {
  if ((header.flags & kInWindow) != 0) {
    // Copied before it is checked: the peer could change what lies in the window between check and use.
    const uint8_t* from =
        handler.window().valid() ? handler.window().at(header.window_offset, header.body_bytes, 8) : nullptr;
    if (from == nullptr) return misbehaved(header, "a body lies outside the shared window");
    if (header.kind == static_cast<uint8_t>(Kind::take)) {  // of a server of this job, and checked as it is read
      body = {from, header.body_bytes};
      return true;
    }
    uint8_t* to = reserve(header.body_bytes);
    body = {to, header.body_bytes};
    if (!body.empty()) std::memcpy(to, from, header.body_bytes);
    return true;
  }
  uint8_t* to = reserve(header.body_bytes);
  body = {to, header.body_bytes};
  if (body.empty()) return true;
  const Io io = receive_all(link_.line(), to, header.body_bytes);
  return io == Io::ok || lost(io == Io::closed ? Io::torn : io == Io::idle ? Io::stalled : io);
}

bool Connection::receive_window(const FrameHeader& header, RequestHandler& handler) {
  uint64_t claimed = 0;
  if (!local_ || header.body_bytes != sizeof claimed || handler.window().valid()) {
    return misbehaved(header, "a window comes once, on a local connection");
  }
  Fd passed;
  const Io io = receive_with_fd(link_.get(), &claimed, sizeof claimed, passed);
  if (io != Io::ok) return lost(io);
  try {
    handler.use(Window::adopt(std::move(passed), kWindowBytes));
  } catch (const BadInput& e) {
    return misbehaved(header, e.what());
  }
  ++state_.count.shared;
  return send_frame(link_.line(), reply_to(header), {}) == Io::ok;
}

bool Connection::misbehaved(const FrameHeader& header, const std::string& why) {
  ++state_.count.bad_frames;
  send_failure(link_.line(), header, Status::bad_frame, why);  // it ends either way
  close_gently(link_.get());
  return false;
}

bool Connection::lost(Io io) {
  if (io == Io::stalled || io == Io::idle) ++state_.count.stalled;
  if (io == Io::torn) ++state_.count.bad_frames;
  return false;
}

uint8_t* Connection::reserve(uint64_t bytes) {
  if (bytes > capacity_ || buffer_ == nullptr) {
    capacity_ = std::max<uint64_t>(bytes, 4096);
    buffer_.reset();
    buffer_.reset(new uint8_t[capacity_]);
  }
  return buffer_.get();
}

}  // namespace springtide
