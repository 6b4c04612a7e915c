#include "migrate/slot_target.h"

#include <cerrno>
#include <cstring>

#include "net/frame_io.h"
#include "net/handshake.h"

namespace springtide {
namespace {

constexpr uint64_t kReplyBytes = 1 << 16;

// A connection that stays within this host, to the same life of the same server; invalid where it is on
// another.
Fd within_host(const ServerState& state, const HandoverOptions& to, const FrameHeader& who, const Welcome& terms) {
  if (!state.options.shared_memory || terms.local_name[0] == '\0') return Fd();
  Fd local = connect_local(terms.local_name.data());
  if (!local) return Fd();
  set_timeouts(local.get(), to.timeout_s, to.timeout_s);
  try {
    return offer_handshake(local.get(), state.options.secret, who).instance == terms.instance ? std::move(local) : Fd();
  } catch (const PeerLost&) {  // the name is someone else's: the connection we have is good
    return Fd();
  }
}

}  // namespace

SlotTarget::SlotTarget(const ServerState& state, const HandoverOptions& to) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(to.timeout_s));
  Fd fd = connect_tcp(to.host, to.port, deadline);
  if (!fd) throw PeerLost(std::string("cannot be reached: ") + std::strerror(errno));
  tune_tcp(fd.get());
  // Exact: handover.cpp polls for answers.
  link_ = Link(std::move(fd), {state.options.tls, TlsSide::caller, "server", to.timeout_s, true});
  set_timeouts(link_.line(), to.timeout_s, to.timeout_s);
  FrameHeader who;
  who.rank = state.options.index;
  who.generation = state.generation;
  const Welcome terms = offer_handshake(link_.line(), state.options.secret, who);
  if (terms.server_index != to.server) {
    throw PeerLost("says it is server " + std::to_string(terms.server_index));
  }
  if (terms.slots != state.store.slots()) throw PeerLost("has another number of slots");
  generation_ = terms.generation;
  if (Fd local = within_host(state, to, who, terms)) {
    link_ = std::move(local);
    local_ = true;
  }
}

const Window& SlotTarget::share(uint64_t bytes) {
  if (!local_) return window_;
  Window window = Window::create(bytes);
  if (!window.valid()) return window_;
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::window);
  header.request = ++sent_;
  header.generation = generation_;
  header.body_bytes = sizeof bytes;
  seal(header);
  std::vector<iovec> buffers = {{&header, sizeof header}};
  const auto* claimed = reinterpret_cast<const uint8_t*>(&bytes);
  if (send_all(link_.line(), buffers) != Io::ok ||
      send_with_fd(link_.get(), {claimed, sizeof bytes}, window.fd()) != Io::ok) {
    throw PeerLost("went away");
  }
  FrameHeader answer;
  if (receive(answer).empty()) window_ = std::move(window);
  return window_;
}

// What lies in the window is not sent: the target reads it there, and it must stay until the answer.
void SlotTarget::send(Kind kind, uint64_t slot, std::span<const uint8_t> body, uint64_t transfer) {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(kind);
  header.request = ++sent_;
  header.step = slot;
  header.clock = transfer;
  header.generation = generation_;
  if (const auto offset = window_.offset_of(body.data(), body.size())) {
    header.flags |= kInWindow;
    header.window_offset = *offset;
    header.body_bytes = body.size();
    seal(header);
    std::vector<iovec> buffers = {{&header, sizeof header}};
    if (send_all(link_.line(), buffers) != Io::ok) throw PeerLost("went away");
    return;
  }
  if (send_frame(link_.line(), header, body) != Io::ok) throw PeerLost("went away");
}

std::string SlotTarget::receive(FrameHeader& answer) {
  std::vector<uint8_t> body;
  return receive(answer, body);
}

std::string SlotTarget::receive(FrameHeader& answer, std::vector<uint8_t>& body) {
  std::string why;
  if (const Io io = receive_frame(link_.line(), answer, body, kReplyBytes, why); io != Io::ok || !why.empty()) {
    throw PeerLost(why.empty() ? describe(io, link_.line()) : why);
  }
  if (answer.request != ++received_) throw PeerLost("sent a reply without a request");
  return answer.status == static_cast<uint16_t>(Status::ok) ? "" : text_of(body) + " ";
}

void SlotTarget::cut() { shut_both(link_.get()); }

}  // namespace springtide
