#include "server/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>

#include "net/frame_io.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "net/tls_session.h"
#include "server/requests/request_handler.h"

namespace springtide {

namespace {

// if one large frame made a buffer larger than this, the buffer is freed
constexpr uint64_t kKeepBytes = 64 << 20;
constexpr uint64_t kWindowBytes = 64ULL << 30;  // most address space that one client may ask this server to map

int until(Clock::time_point due) {  // milliseconds, for poll()
  if (due == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

}  // namespace

// One client connection of a server: handshake, then frames in order until it ends. Next: request_handler.h.
class Connection {
 public:
  Connection(ServerState& state, Fd fd, bool local)
      : state_(state), link_(std::move(fd)), local_(local), ticket_(state.handshakes.begin(link_.get())) {}
  ~Connection() { state_.handshakes.end(ticket_); }

  // Serves until the peer leaves, violates the protocol or does not finish its handshake in time (PendingHandshakes),
  // or until one of the next two functions is called.
  void serve(const Welcome& terms) {
    if (!local_) tune_tcp(link_.get());
    if (!greeted(terms)) {
      ++state_.count.refused;
      close_gently(link_.get());
    } else {
      serve_member();
    }
    if (has_place_) --state_.count.connections;
  }
  void stop_reading() { shut_reading(link_.get()); }
  void cut() { shut_both(link_.get()); }

  std::thread thread;
  std::atomic<bool> finished{false};

 private:
  // If the job has certificates, does the TLS handshake first. Connections within this host need no TLS.
  bool greeted(const Welcome& terms) {
    const double patience_s = state_.options.handshake_s;
    try {
      if (!local_) link_.begin({state_.options.tls, TlsSide::listener, "", patience_s});
    } catch (const HandshakeRefused& e) {  // reply without encryption, for clients without TLS
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
  void serve_member() {
    ++state_.count.accepted;
    set_timeouts(link_.line(), state_.options.stall_s, state_.options.stall_s);
    RequestHandler handler(state_, link_.line());
    try {
      while (next(handler)) {
      }
    } catch (const std::bad_alloc&) {  // the frame is larger than the free memory, so this client is disconnected
      ++state_.count.bad_frames;
    }
  }
  // Called when the client has proved that it knows the secret. Returns the reason why there is no room for the
  // client's window; empty if there is room.
  std::string take_place() {
    if (!state_.handshakes.end(ticket_))
      return "the handshake took too long, or newer connections replaced it; try again";
    const uint32_t most = state_.options.max_connections;
    has_place_ = state_.count.connections++ < most;
    if (has_place_) return {};
    --state_.count.connections;
    return "the server has its " + std::to_string(most) + " connections already";
  }
  bool next(RequestHandler& handler) {
    FrameHeader header;
    const Io io = receive_all(link_.line(), &header, sizeof header);
    if (io == Io::idle) return !state_.stopping;  // a client may be silent between frames
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
  bool receive_body(const FrameHeader& header, RequestHandler& handler, std::span<const uint8_t>& body) {
    if ((header.flags & kInWindow) != 0) {
      // The body is copied before it is checked, because the peer could change the window between the check and the
      // use.
      const uint8_t* from =
          handler.window().valid() ? handler.window().at(header.window_offset, header.body_bytes, 8) : nullptr;
      if (from == nullptr) return misbehaved(header, "a body lies outside the shared window");
      // This body is not copied, because it comes from a server of this job and is checked while it is read.
      if (header.kind == static_cast<uint8_t>(Kind::take)) {
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
  bool receive_window(const FrameHeader& header, RequestHandler& handler) {
    uint64_t claimed = 0;
    if (!local_ || header.body_bytes != sizeof claimed || handler.window().valid()) {
      return misbehaved(header, "a window may be sent only once, on a local connection");
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
  bool misbehaved(const FrameHeader& header, const std::string& why) {
    ++state_.count.bad_frames;
    send_failure(link_.line(), header, Status::bad_frame, why);  // the connection ends in any case
    close_gently(link_.get());
    return false;
  }
  bool lost(Io io) {
    if (io == Io::stalled || io == Io::idle) ++state_.count.stalled;
    if (io == Io::torn) ++state_.count.bad_frames;
    return false;
  }
  uint8_t* reserve(uint64_t bytes) {
    if (bytes > capacity_ || buffer_ == nullptr) {
      capacity_ = std::max<uint64_t>(bytes, 4096);
      buffer_.reset();
      buffer_.reset(new uint8_t[capacity_]);
    }
    return buffer_.get();
  }

  ServerState& state_;
  Link link_;
  bool local_;
  const uint64_t ticket_;  // valid until the handshake is complete
  bool has_place_ = false;
  std::unique_ptr<uint8_t[]> buffer_;  // the current frame; not set to zero, so that a large claimed size costs nothing
  uint64_t capacity_ = 0;
};

Welcome Server::terms() const {
  const ServerOptions& o = state_.options;
  Welcome terms;
  terms.server_index = o.index;
  terms.slots = state_.store.slots();
  terms.epoch = state_.ownership()->epoch;
  terms.generation = state_.generation;
  terms.instance = instance_;
  terms.max_frame_bytes = o.max_frame_bytes;
  terms.credit_requests = o.credit_requests;
  terms.workers = o.workers;
  terms.credit_bytes = o.credit_bytes;
  terms.step_wait_ms = static_cast<uint64_t>(o.step_wait_s * 1000);
  std::copy(local_name_.begin(), local_name_.end(), terms.local_name.begin());
  return terms;
}

void Server::accept_loop() {
  while (!state_.stopping) {
    std::array<pollfd, 3> wait = {{{wake_.get(), POLLIN, 0}, {tcp_.get(), POLLIN, 0}, {local_.get(), POLLIN, 0}}};
    if (poll(wait.data(), local_ ? 3 : 2, until(state_.handshakes.shut_overdue())) < 0 && errno != EINTR) return;
    uint64_t signals = 0;
    while ((wait[0].revents & POLLIN) != 0 && read(wake_.get(), &signals, sizeof signals) < 0 && errno == EINTR) {
    }
    if ((wait[1].revents & POLLIN) != 0) admit(tcp_.get(), false);
    if (local_ && (wait[2].revents & POLLIN) != 0) admit(local_.get(), true);
    reap();
  }
}

void Server::admit(int listener, bool local) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM) return;
    pollfd pause{wake_.get(), POLLIN, 0};  // no file descriptors are left, so wait until some are closed
    poll(&pause, 1, 100);
    return;
  }
  const std::lock_guard lock(mutex_);
  Connection& connection = connections_.emplace_back(state_, std::move(fd), local);
  try {
    connection.thread = std::thread([this, &connection] {
      connection.serve(terms());
      connection.cut();  // this tells the peer now; the next reap() closes the descriptor
      const std::lock_guard inner(mutex_);
      connection.finished = true;
      ended_.notify_all();
      signal();
    });
  } catch (const std::system_error&) {  // no thread available: this client is refused, others are still served
    ++state_.count.refused;
    connections_.pop_back();
  }
}

void Server::signal() {
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Server::reap() {
  std::list<Connection> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto c = connections_.begin(); c != connections_.end();) {
      const auto next = std::next(c);
      if (c->finished) gone.splice(gone.end(), connections_, c);
      c = next;
    }
  }
  for (Connection& connection : gone) connection.thread.join();
}

Server::Server(Store& store, const ServerOptions& options) : state_(store, options) {
  if (options.secret.empty())
    throw BadInput("a server needs the job's secret: bytes that only members of the job know");
  if (options.workers == 0) throw BadInput("workers is 0; a server needs at least 1");
}

Server::~Server() { stop(0); }

void Server::start() {
  // this reports errors in the certificates at the start
  if (!state_.options.tls.empty()) tls_context(state_.options.tls);
  if (tcp_ || stopped_) throw BadInput("this server was started before; create a new server");
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) throw BadInput("this server cannot be started: ", std::strerror(errno));
  tcp_ = listen_tcp(state_.options.host, state_.options.port, port_);
  const std::string token = random_bytes(16);
  std::memcpy(&instance_, token.data(), sizeof instance_);
  if (state_.options.shared_memory) {
    local_name_ = "springtide-" + std::to_string(port_) + "-" + std::to_string(instance_);
    local_ = listen_local(local_name_);
    if (!local_) local_name_.clear();  // without Unix sockets here, all clients use TCP
  }
  wake_ = std::move(wake);
  accepting_ = std::thread([this] { accept_loop(); });
}

void Server::set_placement(uint32_t epoch, std::span<const uint16_t> owners) {
  if (owners.size() != state_.store.slots()) {
    throw BadInput("a placement of ", owners.size(), " slots for tables of ", state_.store.slots());
  }
  state_.change_ownership([&](SlotOwnership& now) {
    throw_if<BadInput>(epoch < now.epoch, "placement epoch ", epoch, " is older than ", now.epoch);
    now.epoch = epoch;
    now.owner.assign(owners.begin(), owners.end());
    now.newest = 0;
    now.mine.resize(owners.size());
    now.since.resize(owners.size());
    for (uint32_t slot = 0; slot < owners.size(); ++slot) {
      if (now.mine[slot] == 0) now.since[slot] = epoch;
      now.mine[slot] = owners[slot] == state_.options.index ? 1 : 0;
      if (now.mine[slot] != 0) now.newest = std::max(now.newest, now.since[slot]);
      now.mine[slot] != 0 ? state_.store.open_slot(slot) : state_.store.close_slot(slot);
    }
  });
}

void Server::learn_placement(uint32_t epoch, std::span<const uint16_t> owners,
                             const std::map<uint16_t, std::string>& addresses) {
  if (owners.size() != state_.store.slots())
    throw BadInput("the placement has another number of slots than the tables");
  state_.change_ownership([&](SlotOwnership& now) {
    if (now.mine.empty() || epoch < now.epoch) return;
    now.epoch = epoch;
    for (const auto& [server, address] : addresses) now.addresses[server] = address;
    for (size_t slot = 0; slot < owners.size(); ++slot) {
      // the master may not know yet that the slot has moved away
      const bool mine = owners[slot] == state_.options.index;
      if (now.mine[slot] == 0 && !mine) now.owner[slot] = owners[slot];
    }
  });
}

HandoverOutcome Server::hand_over(const HandoverOptions& to, std::span<const uint16_t> slots) {
  return springtide::hand_over(state_, to, slots);
}

bool Server::take_back(uint16_t slot) {
  const std::lock_guard one(state_.handover_mutex);
  if (!state_.clear_in_doubt(slot)) return false;
  state_.store.open_slot(slot);
  state_.record_received({&slot, 1});
  return true;
}

bool Server::let_go(uint16_t slot) {
  const std::lock_guard one(state_.handover_mutex);
  if (!state_.clear_in_doubt(slot)) return false;
  if (!state_.store.is_open(slot)) state_.store.clear_slot(slot);
  return true;
}

void Server::take_no_more(bool yes) {
  const std::lock_guard nothing_arrives(state_.import_mutex);
  state_.draining = yes;
}

void Server::expect_anew() {
  const std::lock_guard nothing_arrives(state_.import_mutex);
  ++state_.import_epoch;
}

std::vector<uint16_t> Server::owned() const {
  const auto owned = state_.ownership();
  std::vector<uint16_t> mine;
  for (uint32_t slot = 0; slot < owned->slots; ++slot) {
    if (owned->mine.empty() || owned->mine[slot] != 0) mine.push_back(static_cast<uint16_t>(slot));
  }
  return mine;
}

void Server::set_generation(uint32_t generation, uint32_t workers) {
  throw_if<BadInput>(generation < state_.generation, "generation ", generation, " is older than ",
                     state_.generation.load());
  if (workers == 0) throw BadInput("workers is 0; a group needs at least 1");
  state_.generation = generation;
  state_.steps.reset(workers, generation);
}

void Server::stop(double drain_s) {
  if (stopped_ || !tcp_) return;
  stopped_ = true;
  state_.stopping = true;
  state_.steps.cancel("the server is stopping");
  signal();
  accepting_.join();
  tcp_.reset();
  local_.reset();
  {
    std::unique_lock lock(mutex_);
    for (Connection& connection : connections_) connection.stop_reading();
    const auto all_ended = [&] {
      return std::all_of(connections_.begin(), connections_.end(),
                         [](const Connection& c) { return c.finished.load(); });
    };
    ended_.wait_for(lock, std::chrono::duration<double>(drain_s), all_ended);
    for (Connection& connection : connections_) connection.cut();
    ended_.wait(lock, all_ended);
  }
  reap();
}

}  // namespace springtide
