// Owns a socket and, in a job with certificates, its TLS session. Calls that move bytes take its `Line`
// (socket.h).
#pragma once

#include <memory>
#include <utility>

#include "net/socket.h"
#include "net/tls_session.h"

namespace springtide {

class Link {
 public:
  Link() = default;
  Link(Fd fd) : fd_(std::move(fd)) {}  // NOLINT: a socket is a link without TLS
  // Does the handshake where there are certificates; it throws what TlsSession does.
  Link(Fd fd, const TlsOptions& tls) : fd_(std::move(fd)) { begin(tls); }

  void begin(const TlsOptions& tls) {
    if (!tls.folder.empty()) tls_ = std::make_unique<TlsSession>(fd_.get(), tls);
  }
  int get() const { return fd_.get(); }
  Line line() const { return {fd_.get(), tls_.get()}; }
  const TlsSession* tls() const { return tls_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  Fd fd_;
  std::unique_ptr<TlsSession> tls_;  // ends before its socket
};

}  // namespace springtide
