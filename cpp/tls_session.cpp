#include "tls_session.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>

#include "frame_io.h"
#include "handshake.h"

namespace springtide {
namespace {

constexpr int kErrorSsl = 1, kWantRead = 2, kZeroReturn = 6;
constexpr int kRetryRead = 0x01 | 0x08, kRetryFlags = 0x0f;
constexpr int kFlush = 11, kNotRequested = 0;
constexpr int kSource = 0x0400;    // a kind of BIO that is a source or sink of bytes
constexpr size_t kRecord = 16384;  // bytes of plain text in one record of TLS, at most
constexpr size_t kAhead =
    128 << 10;  // taken off the socket by one call; OpenSSL's own way moves it all for each record
constexpr size_t kBatch = 8 * kRecord;  // encrypted, then handed to the kernel by one call, at most
constexpr size_t kLeast = 2 * kRecord;

// What to encrypt next of a message. Little at its ends, so that the other side begins to decrypt early and
// has little left when we are done: large ones there made an exchange of 1 MB take 8% longer; much between,
// for fewer calls.
size_t batch_of(size_t done, size_t left) {
  return std::min({kBatch, std::max(kLeast, done), std::max(kLeast, left / 2)}) / kRecord * kRecord;
}

int milliseconds(double seconds) {
  if (seconds <= 0) return -1;
  return static_cast<int>(std::clamp(std::ceil(seconds * 1000), 1.0, static_cast<double>(INT_MAX)));
}

// 1: ready, 0: not in time, -1: failed.
int wait_for(int fd, short what, int ms) {
  pollfd wait{fd, what, 0};
  int ready = 0;
  do {
    ready = poll(&wait, 1, ms);
  } while (ready < 0 && errno == EINTR);
  return ready;
}

bool is_refusal(const std::string& reason) {  // as OpenSSL calls alerts of the peer
  return reason.find("alert") != std::string::npos;
}

std::string in_words(const std::string& reason) {
  if (reason == "wrong version number" || reason == "http request" || reason == "unsupported protocol" ||
      reason == "packet length too long") {
    return "it does not speak TLS 1.3: is SPRINGTIDE_TLS set on both sides? (" + reason + ")";
  }
  if (reason == "peer did not return a certificate") return "it showed no certificate";
  if (is_refusal(reason))
    return "it did not accept this process's certificate, or broke off (" + reason + ")";
  return "TLS failed: " + reason;
}

}  // namespace

TlsSession::TlsSession(int fd, const TlsOptions& options)
    : fd_(fd),
      o_(openssl()),
      context_(tls_context(options.folder)),
      ssl_(o_.SSL_new(context_->ctx)),
      rekey_bytes_(options.rekey_bytes) {
  if (ssl_ == nullptr) throw BadInput("OpenSSL has no memory for a connection");
  Bio* bio = o_.BIO_new(method());
  if (bio == nullptr) {
    o_.SSL_free(ssl_);
    throw BadInput("OpenSSL has no memory for a connection");
  }
  o_.BIO_set_data(bio, this);
  o_.BIO_set_init(bio, 1);
  o_.SSL_set_bio(ssl_, bio, bio);
  if (!options.exact) ahead_.reset(new uint8_t[kAhead]);
  options.side == TlsSide::caller ? o_.SSL_set_connect_state(ssl_) : o_.SSL_set_accept_state(ssl_);
  record_.reset(new uint8_t[kRecord]);
  try {
    shake_hands(options.within_s);
    check_peer(options.role);
  } catch (...) {
    o_.SSL_free(ssl_);
    throw;
  }
}

TlsSession::~TlsSession() { o_.SSL_free(ssl_); }

void TlsSession::set_timeouts(double receive_s, double send_s) {
  receive_ms_ = milliseconds(receive_s);
  send_ms_ = milliseconds(send_s);
}

const BioMethod* TlsSession::method() {
  static const BioMethod* made = [] {
    const OpenSsl& o = openssl();
    BioMethod* method = o.BIO_meth_new(o.BIO_get_new_index() | kSource, "springtide socket");
    if (method == nullptr) throw BadInput("OpenSSL has no memory for a connection");
    o.BIO_meth_set_read(method, &TlsSession::read_socket);
    o.BIO_meth_set_write(method, &TlsSession::write_batch);
    o.BIO_meth_set_ctrl(method, &TlsSession::control);
    return method;
  }();
  return made;
}

int TlsSession::read_socket(Bio* bio, char* out, int bytes) {
  const OpenSsl& o = openssl();
  auto* self = static_cast<TlsSession*>(o.BIO_get_data(bio));
  o.BIO_clear_flags(bio, kRetryFlags);
  if (self->at_ == self->filled_) {
    const bool ahead = self->ahead_ != nullptr;
    ssize_t got = 0;
    do {
      got = recv(self->fd_, ahead ? self->ahead_.get() : static_cast<void*>(out),
                 ahead ? kAhead : static_cast<size_t>(bytes), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got == 0) self->ended_ = true;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) o.BIO_set_flags(bio, kRetryRead);
    if (got <= 0 || !ahead) return static_cast<int>(got);
    self->at_ = 0;
    self->filled_ = static_cast<size_t>(got);
  }
  const size_t moved = std::min(self->filled_ - self->at_, static_cast<size_t>(bytes));
  std::memcpy(out, self->ahead_.get() + self->at_, moved);
  self->at_ += moved;
  return static_cast<int>(moved);
}

int TlsSession::write_batch(Bio* bio, const char* from, int bytes) {
  auto* self = static_cast<TlsSession*>(openssl().BIO_get_data(bio));
  const auto* begin = reinterpret_cast<const uint8_t*>(from);
  self->batch_.insert(self->batch_.end(), begin, begin + bytes);
  return bytes;
}

long TlsSession::control(Bio*, int command, long, void*) { return command == kFlush ? 1 : 0; }

void TlsSession::shake_hands(double within_s) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(within_s));
  while (true) {
    o_.ERR_clear_error();
    const int done = o_.SSL_do_handshake(ssl_);
    const int code = done == 1 ? 0 : o_.SSL_get_error(ssl_, done);
    const std::string reason = code == kErrorSsl ? tls_error() : "";
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    going_.swap(batch_);
    send_ms_ = milliseconds(std::max(left, 0.001));
    const Io io = flush(true);  // also an alert that says why not
    if (code == kErrorSsl && !ended_) {
      const long verdict = o_.SSL_get_verify_result(ssl_);
      if (verdict != 0 && reason == "certificate verify failed") {
        throw HandshakeRefused(std::string("its certificate is not good: ") +
                               o_.X509_verify_cert_error_string(verdict));
      }
      throw HandshakeRefused(in_words(reason));
    }
    if (io != Io::ok) throw PeerLost(describe(io));
    if (done == 1) break;
    if (code != kWantRead) throw PeerLost("the connection was closed while TLS began");
    if (left <= 0 || wait_for(fd_, POLLIN, milliseconds(left)) == 0) {
      throw PeerLost("the other side stopped while TLS began");
    }
  }
  send_ms_ = -1;
}

void TlsSession::check_peer(const std::string& role) {
  X509* certificate = o_.SSL_get1_peer_certificate(ssl_);
  const TlsName other = name_in(certificate);
  if (certificate != nullptr) o_.X509_free(certificate);
  if (other.job != context_->own.job) {
    throw HandshakeRefused("its certificate is for the job '" + other.job + "', this is '" +
                           context_->own.job + "'");
  }
  if (!role.empty() && other.role != role) {
    throw HandshakeRefused("its certificate is for a " + other.role + "; a " + role + " was called");
  }
}

std::string TlsSession::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

bool TlsSession::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

Io TlsSession::failed(int code) {
  if (code == kErrorSsl) {
    const std::string reason = tls_error();
    why_ = in_words(reason);
    refused_ = is_refusal(reason);
    errno = EPROTO;
  }
  return Io::failed;
}

Io TlsSession::flush(bool wait) {
  while (gone_ < going_.size()) {
    const ssize_t sent =
        ::send(fd_, going_.data() + gone_, going_.size() - gone_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      gone_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait) return Io::idle;
      const int ready = wait_for(fd_, POLLOUT, send_ms_);
      if (ready <= 0) return ready == 0 ? Io::stalled : Io::failed;
    } else if (errno != EINTR) {
      return Io::failed;
    }
  }
  going_.clear();
  gone_ = 0;
  return Io::ok;
}

bool TlsSession::write(const void* from, size_t bytes) {
  size_t written = 0;  // all of it: the batch takes whatever comes
  const int done = o_.SSL_write_ex(ssl_, from, bytes, &written);
  if (done != 1) failed(o_.SSL_get_error(ssl_, done));
  return done == 1 && written == bytes;
}

size_t TlsSession::seal(const std::vector<iovec>& buffers, size_t most) {
  const std::lock_guard lock(mutex_);
  o_.ERR_clear_error();
  if (by_this_key_ >= rekey_bytes_) {  // told by the next record; the other side need not do the same
    if (o_.SSL_key_update(ssl_, kNotRequested) != 1) return 0;
    by_this_key_ = 0;
  }
  size_t taken = 0, filled = 0;
  for (size_t i = 0, at = 0; i < buffers.size() && taken < most;) {
    const auto* from = static_cast<const uint8_t*>(buffers[i].iov_base) + at;
    const size_t left = buffers[i].iov_len - at;
    size_t moved = 0;
    if (filled == 0 && left >= kRecord) {  // whole records straight from where they are
      moved = std::min(left, most - taken) / kRecord * kRecord;
      if (!write(from, moved)) return 0;
    } else {
      moved = std::min(left, kRecord - filled);
      if (moved != 0) std::memcpy(record_.get() + filled, from, moved);
      filled += moved;
      if (filled == kRecord) {
        if (!write(record_.get(), filled)) return 0;
        filled = 0;
      }
    }
    taken += moved;
    at += moved;
    if (at == buffers[i].iov_len) ++i, at = 0;
  }
  if (filled != 0 && !write(record_.get(), filled)) return 0;
  going_.swap(batch_);
  by_this_key_ += taken;
  return taken;
}

Io TlsSession::send(std::vector<iovec>& buffers, bool wait) {
  for (size_t done = 0;; done += sealed_) {
    const Io io = flush(wait);
    if (io == Io::idle) return Io::ok;
    if (io != Io::ok) return io;
    advance(buffers, std::exchange(sealed_, 0));
    const size_t left = total_bytes(buffers);
    if (left == 0) {
      buffers.clear();
      return Io::ok;
    }
    sealed_ = seal(buffers, batch_of(done, left));
    if (sealed_ == 0) return Io::failed;
  }
}

Io TlsSession::receive_some(void* out, size_t bytes, size_t& got) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      o_.ERR_clear_error();
      const int done = o_.SSL_read_ex(ssl_, out, bytes, &got);
      if (done == 1) return Io::ok;
      const int error = errno;
      const int code = o_.SSL_get_error(ssl_, done);
      if (code == kZeroReturn || ended_) return Io::closed;
      if (code != kWantRead) {
        errno = error;
        return failed(code);
      }
    }
    const int ready = wait_for(fd_, POLLIN, receive_ms_);
    if (ready <= 0) return ready == 0 ? Io::idle : Io::failed;
  }
}

Io TlsSession::receive(void* out, size_t bytes) {
  auto* to = static_cast<uint8_t*>(out);
  size_t have = 0;
  while (have < bytes) {
    size_t got = 0;
    const Io io = receive_some(to + have, bytes - have, got);
    if (io == Io::closed) return have == 0 ? Io::closed : Io::torn;
    if (io == Io::idle) return have == 0 ? Io::idle : Io::stalled;
    if (io != Io::ok) return io;
    have += got;
  }
  return Io::ok;
}

Io TlsSession::receive(std::vector<iovec>& buffers) {
  for (; !buffers.empty(); buffers.erase(buffers.begin())) {
    const Io io = receive(buffers.front().iov_base, buffers.front().iov_len);
    if (io != Io::ok) return io == Io::closed ? Io::torn : io == Io::idle ? Io::stalled : io;
  }
  return Io::ok;
}

}  // namespace springtide
