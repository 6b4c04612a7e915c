#include "net/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/types.h"
#include "net/tls_session.h"

namespace springtide {

namespace {

// An array of atomics, because a forked child of a process with threads may neither lock nor allocate. 0: free, else fd
// + 1.
std::array<std::atomic<int>, 4096> guarded{};

void close_all() {
  for (auto& cell : guarded) {
    const int fd = cell.exchange(0) - 1;
    if (fd >= 0) close(fd);
  }
}

// Most bytes to receive in one call. With this limit, the timeout requires a minimum rate, for frames of any size.
constexpr size_t kReceiveAtOnce = 4 << 20;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, uint16_t port, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0) throw BadInput("the host '", host, "' cannot be looked up: ", gai_strerror(code));
  return Addresses(list);
}

sockaddr_un local_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);  // a leading zero makes the address abstract
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

timeval as_timeval(double seconds) {
  timeval tv{};
  tv.tv_sec = static_cast<time_t>(seconds);
  tv.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  if (seconds > 0 && tv.tv_sec == 0 && tv.tv_usec == 0) tv.tv_usec = 1;
  return tv;
}

msghdr message_of(std::vector<iovec>& buffers) {
  msghdr message{};
  message.msg_iov = buffers.data();
  message.msg_iovlen = std::min<size_t>(buffers.size(), IOV_MAX);
  return message;
}

Io send_plain(int fd, std::vector<iovec>& buffers, int flags, Io if_full) {
  while (!buffers.empty()) {
    const msghdr message = message_of(buffers);
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | flags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN ? if_full : Io::failed;
    advance(buffers, static_cast<size_t>(sent));
  }
  return Io::ok;
}

// One buffer, and room for a descriptor.
struct WithFd {
  alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(int))> control{};
  iovec body;
  msghdr message{};
  WithFd(void* bytes, size_t count) : body{bytes, count} {
    message.msg_iov = &body;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    // the exact length, because the padding has room for a second descriptor
    message.msg_controllen = CMSG_LEN(sizeof(int));
  }
};

bool finish_connect(int fd, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd wait{fd, POLLOUT, 0};
  const int ready = poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
  if (ready <= 0) {
    if (ready == 0) errno = ETIMEDOUT;
    return false;
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  errno = error;
  return error == 0;
}

}  // namespace

void advance(std::vector<iovec>& buffers, size_t bytes) {
  size_t whole = 0;
  while (whole < buffers.size() && bytes >= buffers[whole].iov_len) bytes -= buffers[whole++].iov_len;
  buffers.erase(buffers.begin(), buffers.begin() + static_cast<ptrdiff_t>(whole));
  if (bytes != 0) {
    buffers.front().iov_base = static_cast<uint8_t*>(buffers.front().iov_base) + bytes;
    buffers.front().iov_len -= bytes;
  }
}

void Fd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Fd listen_tcp(const std::string& host, uint16_t port, uint16_t& bound) {
  const Addresses list = resolve(host, port, true);
  int error = 0;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Fd fd(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!fd) continue;
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd.get(), a->ai_addr, a->ai_addrlen) != 0 || listen(fd.get(), 512) != 0) {
      error = errno;
      continue;
    }
    sockaddr_storage where{};
    socklen_t length = sizeof where;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where), &length);
    bound = ntohs(where.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&where)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(&where)->sin_port);
    return fd;
  }
  const std::string address = host + ":" + std::to_string(port);
  throw_if<PortTaken>(error == EADDRINUSE, "cannot listen on ", address,
                      ": another process does; stop it, choose another port, or use port 0 for a free one");
  throw BadInput("cannot listen on ", address, ": ", std::strerror(error));
}

Fd listen_local(const std::string& name) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = local_address(name, length);
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 || listen(fd.get(), 512) != 0) {
    return Fd();
  }
  return fd;
}

Fd connect_tcp(const std::string& host, uint16_t port, Clock::time_point deadline) {
  const Addresses list = resolve(host, port, false);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Fd fd(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    if (!fd) continue;
    const bool connected = connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0;
    if (!connected && (errno != EINPROGRESS || !finish_connect(fd.get(), deadline))) continue;
    fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
    return fd;
  }
  return Fd();
}

Fd connect_local(const std::string& name) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = local_address(name, length);
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return Fd();
  return fd;
}

void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
             30000);  // ms without an acknowledgement of sent bytes
}

void set_timeouts(Line line, double receive_s, double send_s) {
  if (line.tls != nullptr) line.tls->set_timeouts(receive_s, send_s);
  const timeval receive = as_timeval(receive_s), send = as_timeval(send_s);
  setsockopt(line.fd, SOL_SOCKET, SO_RCVTIMEO, &receive, sizeof receive);
  setsockopt(line.fd, SOL_SOCKET, SO_SNDTIMEO, &send, sizeof send);
}

Io send_all(Line line, std::vector<iovec>& buffers) {
  if (line.tls != nullptr) return line.tls->send(buffers, true);
  return send_plain(line.fd, buffers, 0, Io::stalled);
}

Io send_some(Line line, std::vector<iovec>& buffers) {
  if (line.tls != nullptr) return line.tls->send(buffers, false);
  return send_plain(line.fd, buffers, MSG_DONTWAIT, Io::ok);
}

Io receive_all(Line line, void* out, size_t bytes) {
  if (line.tls != nullptr) return line.tls->receive(out, bytes);
  auto* to = static_cast<uint8_t*>(out);
  size_t have = 0;
  while (have < bytes) {
    const size_t piece = std::min(bytes - have, kReceiveAtOnce);
    const ssize_t got = recv(line.fd, to + have, piece, MSG_WAITALL);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return have == 0 ? Io::idle : Io::stalled;
      return Io::failed;
    }
    if (got == 0) return have == 0 ? Io::closed : Io::torn;
    have += static_cast<size_t>(got);
  }
  return Io::ok;
}

Io receive_all(Line line, std::vector<iovec>& buffers) {
  if (line.tls != nullptr) return line.tls->receive(buffers);
  while (!buffers.empty()) {
    if (buffers.front().iov_len > kReceiveAtOnce || buffers.size() == 1) {
      const Io io = receive_all(line, buffers.front().iov_base, buffers.front().iov_len);
      if (io != Io::ok) return io == Io::closed ? Io::torn : io == Io::idle ? Io::stalled : io;
      buffers.erase(buffers.begin());
      continue;
    }
    msghdr message = message_of(buffers);
    const ssize_t got = recvmsg(line.fd, &message, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN ? Io::stalled : Io::failed;
    if (got == 0) return Io::torn;
    advance(buffers, static_cast<size_t>(got));
  }
  return Io::ok;
}

Io send_with_fd(int fd, std::span<const uint8_t> bytes, int passed) {
  WithFd with(const_cast<uint8_t*>(bytes.data()), bytes.size());
  cmsghdr* entry = CMSG_FIRSTHDR(&with.message);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(entry), &passed, sizeof passed);
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd, &with.message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size()) ? Io::ok : Io::failed;
}

Io receive_with_fd(int fd, void* out, size_t bytes, Fd& passed) {
  WithFd with(out, bytes);
  const ssize_t got = recvmsg(fd, &with.message, MSG_WAITALL | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN ? Io::idle : Io::failed;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&with.message); entry != nullptr; entry = CMSG_NXTHDR(&with.message, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(entry), sizeof received);
    passed = Fd(received);
  }
  if (got == 0) return Io::closed;
  return got == static_cast<ssize_t>(bytes) ? Io::ok : Io::torn;
}

int peer_process(int fd) {
  ucred who{};
  socklen_t size = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.pid > 0 ? who.pid : 0;
}

void shut_reading(int fd) { shutdown(fd, SHUT_RD); }

void shut_both(int fd) { shutdown(fd, SHUT_RDWR); }

void close_gently(int fd) {
  shutdown(fd, SHUT_WR);
  set_timeouts(fd, 0.2, 0.2);
  std::array<uint8_t, 16384> waste;
  for (int i = 0; i < 64 && recv(fd, waste.data(), waste.size(), 0) > 0; ++i) {
  }
}

size_t total_bytes(std::span<const iovec> buffers) {
  size_t bytes = 0;
  for (const iovec& buffer : buffers) bytes += buffer.iov_len;
  return bytes;
}

void close_in_children(int fd) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, close_all); });
  for (auto& cell : guarded) {
    int free = 0;
    if (cell.compare_exchange_strong(free, fd + 1)) return;
  }
}

void forget_in_children(int fd) {
  for (auto& cell : guarded) {
    int mine = fd + 1;
    if (cell.compare_exchange_strong(mine, 0)) return;
  }
}

}  // namespace springtide
