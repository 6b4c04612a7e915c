// Sockets with deadlines. Results tell a peer that stopped mid-message from one that closed. Next: handshake.h.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace springtide {

// Someone else listens there. springtide.errors.PortTaken.
struct PortTaken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Clock = std::chrono::steady_clock;
inline uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}
inline Clock::duration seconds_of(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}
inline double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

class TlsSession;

// What bytes go over: a socket, and TLS where there is some (Link owns both). A plain number is a socket without.
struct Line {
  Line(int socket, TlsSession* session = nullptr) : fd(socket), tls(session) {}  // NOLINT
  int fd;
  TlsSession* tls;
};

enum class Io : uint8_t {
  ok,
  closed,   // the peer closed before the first byte
  torn,     // it closed in the middle
  idle,     // nothing at all within the receive timeout
  stalled,  // it stopped in the middle for longer than the timeout
  failed,   // errno says why
};

// "port 0" asks the kernel for one; `bound` says which. PortTaken, or BadInput for a host that is not one.
Fd listen_tcp(const std::string& host, uint16_t port, uint16_t& bound);
Fd listen_local(const std::string& name);  // abstract: no file, gone with the process

// Invalid when it failed; errno says why.
Fd connect_tcp(const std::string& host, uint16_t port, Clock::time_point deadline);
Fd connect_local(const std::string& name);

void tune_tcp(int fd);                                          // no delay, keepalive, lost peers noticed in seconds
void set_timeouts(Line line, double receive_s, double send_s);  // 0: forever

// The list of buffers is used up as bytes move.
Io send_all(Line line, std::vector<iovec>& buffers);
// As much as the kernel takes at once. `ok` with buffers left means that it would have blocked.
Io send_some(Line line, std::vector<iovec>& buffers);
Io receive_all(Line line, void* out, size_t bytes);
Io receive_all(Line line, std::vector<iovec>& buffers);
// A frame's bytes with one descriptor attached, and back. receive_with_fd leaves `passed` invalid when none came.
Io send_with_fd(int fd, std::span<const uint8_t> bytes, int passed);
Io receive_with_fd(int fd, void* out, size_t bytes, Fd& passed);

int peer_process(int fd);  // of a local connection; 0 where it is not one, or of no process that is seen here

void shut_reading(int fd);
void shut_both(int fd);
// Ends our side and reads what the peer still sends for a moment, so that our last words are not lost to a reset.
void close_gently(int fd);
size_t total_bytes(std::span<const iovec> buffers);
void advance(std::vector<iovec>& buffers, size_t bytes);  // drops the first `bytes` of the list

// Closes inherited sockets in forked children (data loader workers). Connections belong to the process that
// made them: a server then notices when the parent exits.
void close_in_children(int fd);  // from now until forget_in_children
void forget_in_children(int fd);

}  // namespace springtide
