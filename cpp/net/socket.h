// Sockets with timeouts. The result says whether a peer stopped in the middle of a message or closed the connection.
// Next: handshake.h.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace springtide {

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

// A socket with an optional TLS session (Link owns both). A plain file descriptor converts to a line without TLS.
struct Line {
  Line(int socket, TlsSession* session = nullptr) : fd(socket), tls(session) {}  // NOLINT
  int fd;
  TlsSession* tls;
};

enum class Io : uint8_t {
  ok,
  closed,   // the peer closed before the first byte
  torn,     // the peer closed in the middle of the message
  idle,     // no byte within the receive timeout
  stalled,  // no further byte of the message within the timeout
  failed,   // errno says why
};

// With port 0, takes a free port. `bound` gets the port. Throws PortTaken, or BadInput for an invalid host.
Fd listen_tcp(const std::string& host, uint16_t port, uint16_t& bound);
Fd listen_local(const std::string& name);  // abstract Unix socket: no file, ends with the process

// Returns an invalid Fd on failure; errno has the reason.
Fd connect_tcp(const std::string& host, uint16_t port, Clock::time_point deadline);
Fd connect_local(const std::string& name);

void tune_tcp(int fd);  // no delay; keepalive that detects lost peers within seconds
void set_timeouts(Line line, double receive_s, double send_s);  // seconds; 0 means to wait forever

// Sends the buffers, and removes those that were sent from the list.
Io send_all(Line line, std::vector<iovec>& buffers);
// Sends as much as possible without blocking. If the result is `ok` and buffers are left, the socket would have
// blocked.
Io send_some(Line line, std::vector<iovec>& buffers);
Io receive_all(Line line, void* out, size_t bytes);
Io receive_all(Line line, std::vector<iovec>& buffers);
// Sends or receives a frame with one file descriptor attached. receive_with_fd leaves `passed` invalid if there was
// none.
Io send_with_fd(int fd, std::span<const uint8_t> bytes, int passed);
Io receive_with_fd(int fd, void* out, size_t bytes, Fd& passed);

// Returns the process id of a local connection's peer. Returns 0 if the connection is not local or the process is not
// visible here.
int peer_process(int fd);

void shut_reading(int fd);
void shut_both(int fd);
// Shuts down this side, and then reads the peer's remaining bytes for a short time. Otherwise, a TCP reset could
// discard this side's last message.
void close_gently(int fd);
size_t total_bytes(std::span<const iovec> buffers);
void advance(std::vector<iovec>& buffers, size_t bytes);  // drops the first `bytes` of the list

// Closes inherited sockets in forked children (data loader workers). Connections belong to the process that opened
// them. If a child kept a socket open, a server would not notice the exit of that process.
void close_in_children(int fd);  // from now until forget_in_children
void forget_in_children(int fd);

}  // namespace springtide
