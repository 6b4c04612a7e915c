#include "net/tls_session.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <map>

#include "base/types.h"
#include "net/frame_io.h"
#include "net/handshake.h"

namespace springtide {

struct TlsName {     // springtide:JOB/ROLE in a certificate
  std::string job;   // as written in the certificate, with escapes
  std::string role;  // worker, server, ...
};

struct TlsContext : NoCopy {
  explicit TlsContext(SslCtx* made) : ctx(made) {}
  ~TlsContext() {
    if (ctx != nullptr) openssl().SSL_CTX_free(ctx);
  }

  SslCtx* ctx;
  TlsName own;
};

namespace {

constexpr int kSecrets = 0;  // index of the TlsSecrets in the data that an Ssl carries

constexpr int kSetMinimum = 123, kTls13 = 0x0304;
constexpr int kVerifyPeer = 1, kFailWithout = 2;
constexpr int kPem = 1;
constexpr uint64_t kNoTicket = 1 << 14;
constexpr int kAlternativeNames = 85, kUri = 6;
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";  // mandatory in TLS 1.3, and the only suite of tls_records.h
const std::string kScheme = "springtide:";

using Stamp = std::array<int64_t, 12>;

struct Known {
  Stamp stamp{};
  std::shared_ptr<const TlsContext> context;
};

Stamp stamp_of(const std::string& folder) {
  Stamp stamp{};
  size_t at = 0;
  for (const char* name : {"/ca.crt", "/tls.crt", "/tls.key"}) {
    struct stat found{};
    if (stat((folder + name).c_str(), &found) != 0) {
      throw BadInput("the certificates in ", folder, " cannot be used: ", (name + 1), ": ", std::strerror(errno));
    }
    stamp[at++] = static_cast<int64_t>(found.st_ino);
    stamp[at++] = found.st_mtim.tv_sec;
    stamp[at++] = found.st_mtim.tv_nsec;
    stamp[at++] = found.st_size;
  }
  return stamp;
}

TlsName name_in(X509* certificate) {
  const OpenSsl& o = openssl();
  TlsName name;
  if (certificate == nullptr) return name;
  void* names = o.X509_get_ext_d2i(certificate, kAlternativeNames, nullptr, nullptr);
  if (names == nullptr) return name;
  for (int i = 0; i < o.OPENSSL_sk_num(names) && name.job.empty(); ++i) {
    int kind = 0;
    const void* value = o.GENERAL_NAME_get0_value(o.OPENSSL_sk_value(names, i), &kind);
    if (kind != kUri) continue;
    const std::string uri(reinterpret_cast<const char*>(o.ASN1_STRING_get0_data(value)),
                          static_cast<size_t>(o.ASN1_STRING_length(value)));
    const size_t slash = uri.find('/');
    if (uri.rfind(kScheme, 0) != 0 || slash == std::string::npos || slash + 1 == uri.size()) continue;
    name.job = uri.substr(kScheme.size(), slash - kScheme.size());
    name.role = uri.substr(slash + 1);
  }
  o.GENERAL_NAMES_free(names);
  return name;
}

std::string tls_error() {
  const OpenSsl& o = openssl();
  const unsigned long code = o.ERR_peek_error();
  const char* reason = code == 0 ? nullptr : o.ERR_reason_error_string(code);
  return reason == nullptr ? "the peer gave no reason" : reason;
}

std::string explain_tls_error(const std::string& reason) {
  if (reason == "wrong version number" || reason == "http request" || reason == "unsupported protocol" ||
      reason == "packet length too long") {
    return "it does not speak TLS 1.3: is SPRINGTIDE_TLS set on both sides? (" + reason + ")";
  }
  if (reason == "peer did not return a certificate") return "it showed no certificate";
  if (reason.find("alert") != std::string::npos)
    return "the peer rejected this process's certificate, or closed the connection (" + reason + ")";
  return "TLS failed: " + reason;
}

void note_secret(const Ssl* ssl, const char* line) {
  auto* secrets = static_cast<TlsSecrets*>(openssl().SSL_get_ex_data(ssl, kSecrets));
  if (secrets != nullptr) secrets->note(line);
}

// Loads the files of a folder. Returns null and sets `why` if certificate and key do not match.
std::shared_ptr<TlsContext> read(const std::string& folder, std::string& why) {
  const OpenSsl& o = openssl();
  o.ERR_clear_error();
  auto made = std::make_shared<TlsContext>(o.SSL_CTX_new(o.TLS_method()));
  const std::string certificate = folder + "/tls.crt", key = folder + "/tls.key", ca = folder + "/ca.crt";
  const bool fits =
      made->ctx != nullptr && o.SSL_CTX_ctrl(made->ctx, kSetMinimum, kTls13, nullptr) == 1 &&
      o.SSL_CTX_set_ciphersuites(made->ctx, kSuite) == 1 && o.SSL_CTX_set_num_tickets(made->ctx, 0) == 1 &&
      o.SSL_CTX_use_certificate_chain_file(made->ctx, certificate.c_str()) == 1 &&
      o.SSL_CTX_use_PrivateKey_file(made->ctx, key.c_str(), kPem) == 1 && o.SSL_CTX_check_private_key(made->ctx) == 1 &&
      o.SSL_CTX_load_verify_locations(made->ctx, ca.c_str(), nullptr) == 1;
  if (!fits) {
    why = tls_error();
    return nullptr;
  }
  o.SSL_CTX_set_options(made->ctx, kNoTicket);
  o.SSL_CTX_set_keylog_callback(made->ctx, &note_secret);
  o.SSL_CTX_set_verify(made->ctx, kVerifyPeer | kFailWithout, nullptr);
  made->own = name_in(o.SSL_CTX_get0_certificate(made->ctx));
  if (made->own.job.empty()) {
    why = "tls.crt has no name such as springtide:JOB/worker in it";
    return nullptr;
  }
  return made;
}

constexpr int kErrorSsl = 1, kWantRead = 2;
constexpr int kRetryRead = 0x01 | 0x08, kRetryFlags = 0x0f;
constexpr int kFlush = 11;
constexpr int kSource = 0x0400;         // a kind of BIO that reads or writes bytes
constexpr size_t kAhead = 128 << 10;    // most bytes to read from the socket in one call
constexpr size_t kBatch = 8 * kRecord;  // most bytes to encrypt and then send in one call
constexpr size_t kLeast = 2 * kRecord;
// Maximum number of records in a batch: eight full records, one record of small buffers before them, one after them,
// and one key update.
constexpr size_t kGoing = 11 * kSealed;
constexpr uint8_t kKeyUpdate = 24, kNewTicket = 4;
constexpr uint8_t kCloseNotify = 0;

// Returns how many bytes of a message to encrypt next. Batches are small at both ends of a message, so that the other
// side starts to decrypt early and has little left at the end. With large batches at both ends, an exchange of 1 MB
// takes 8% longer. In the middle of a message, batches are large, so that there are fewer calls.
size_t batch_of(size_t done, size_t left) {
  return std::min({kBatch, std::max(kLeast, done), std::max(kLeast, left / 2)}) / kRecord * kRecord;
}

int milliseconds(double seconds) {
  if (seconds <= 0) return -1;
  return static_cast<int>(std::clamp(std::ceil(seconds * 1000), 1.0, static_cast<double>(INT_MAX)));
}

// Returns 1 if the socket is ready, 0 if it was not ready in time, and -1 on failure.
int wait_for(int fd, short what, int ms) {
  pollfd wait{fd, what, 0};
  int ready = 0;
  do {
    ready = poll(&wait, 1, ms);
  } while (ready < 0 && errno == EINTR);
  return ready;
}

}  // namespace

std::shared_ptr<const TlsContext> tls_context(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, Known> known;
  const std::lock_guard lock(mutex);
  std::string why;
  for (int attempt = 0; attempt < 3; ++attempt) {  // retries, because files may be renewed while they are read
    const Stamp stamp = stamp_of(folder);
    Known& entry = known[folder];
    if (entry.context && entry.stamp == stamp) return entry.context;
    auto made = read(folder, why);
    if (made && stamp_of(folder) == stamp) {
      entry = {stamp, made};
      return made;
    }
  }
  throw BadInput("the certificates in ", folder, " cannot be used: ", (why.empty() ? "they keep changing" : why),
                 "; wanted ca.crt, tls.crt and tls.key of this job");
}

TlsSession::TlsSession(int fd, std::shared_ptr<const TlsContext> context, bool exact, uint64_t rekey_bytes)
    : fd_(fd),
      o_(openssl()),
      context_(std::move(context)),
      exact_(exact),
      rekey_bytes_(rekey_bytes),
      going_(new uint8_t[kGoing]),
      gathered_(new uint8_t[kRecord]),
      ahead_(new uint8_t[kAhead]),
      text_(new uint8_t[kLongest]) {}

TlsSession::TlsSession(int fd, const Secrets& secrets, bool exact)
    : TlsSession(fd, nullptr, exact, TlsOptions().rekey_bytes) {
  sealer_.emplace(secrets.sends, RecordCipher::Way::seals);
  opener_.emplace(secrets.receives, RecordCipher::Way::opens);
}

TlsSession::TlsSession(int fd, const TlsOptions& options)
    : TlsSession(fd, tls_context(options.folder), options.exact, options.rekey_bytes) {
  const std::unique_ptr<Ssl, void (*)(Ssl*)> ssl(o_.SSL_new(context_->ctx), o_.SSL_free);
  Bio* bio = ssl == nullptr ? nullptr : o_.BIO_new(method());
  if (bio == nullptr) throw BadInput("OpenSSL has no memory for a connection");
  o_.BIO_set_data(bio, this);
  o_.BIO_set_init(bio, 1);
  o_.SSL_set_bio(ssl.get(), bio, bio);
  TlsSecrets secrets;
  o_.SSL_set_ex_data(ssl.get(), kSecrets, &secrets);
  const bool calls = options.side == TlsSide::caller;
  calls ? o_.SSL_set_connect_state(ssl.get()) : o_.SSL_set_accept_state(ssl.get());
  shake_hands(ssl.get(), options.within_s);
  check_peer(ssl.get(), options.role);
  throw_if<BadInput>(!secrets.has_caller || !secrets.has_listener,
                     "the OpenSSL of this machine does not report the keys of a connection");
  sealer_.emplace(calls ? secrets.caller : secrets.listener, RecordCipher::Way::seals);
  opener_.emplace(calls ? secrets.listener : secrets.caller, RecordCipher::Way::opens);
}

TlsSession::~TlsSession() = default;

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
    o.BIO_meth_set_write(method, &TlsSession::write_flight);
    o.BIO_meth_set_ctrl(method, &TlsSession::control);
    return method;
  }();
  return made;
}

int TlsSession::read_socket(Bio* bio, char* out, int bytes) {
  const OpenSsl& o = openssl();
  auto* self = static_cast<TlsSession*>(o.BIO_get_data(bio));
  o.BIO_clear_flags(bio, kRetryFlags);
  ssize_t got = 0;
  do {  // reads only the bytes that OpenSSL asks for, because later bytes do not belong to the handshake
    got = recv(self->fd_, out, static_cast<size_t>(bytes), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got == 0) self->ended_ = true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) o.BIO_set_flags(bio, kRetryRead);
  return static_cast<int>(got);
}

int TlsSession::write_flight(Bio* bio, const char* from, int bytes) {
  auto* self = static_cast<TlsSession*>(openssl().BIO_get_data(bio));
  const size_t taken = std::min(static_cast<size_t>(bytes), kGoing - self->made_);
  std::memcpy(self->going_.get() + self->made_, from, taken);
  self->made_ += taken;
  return static_cast<int>(taken);
}

long TlsSession::control(Bio*, int command, long, void*) { return command == kFlush ? 1 : 0; }

void TlsSession::shake_hands(Ssl* ssl, double within_s) {
  const auto deadline = Clock::now() + seconds_of(within_s);
  while (true) {
    o_.ERR_clear_error();
    const int done = o_.SSL_do_handshake(ssl);
    const int code = done == 1 ? 0 : o_.SSL_get_error(ssl, done);
    const std::string reason = code == kErrorSsl ? tls_error() : "";
    const double left = -since(deadline);
    send_ms_ = milliseconds(std::max(left, 0.001));
    const Io io = flush(true);  // also sends an alert with the reason for a failure
    if (code == kErrorSsl && !ended_) {
      const long verdict = o_.SSL_get_verify_result(ssl);
      if (verdict != 0 && reason == "certificate verify failed") {
        throw HandshakeRefused("its certificate is not good: ", o_.X509_verify_cert_error_string(verdict));
      }
      throw HandshakeRefused(explain_tls_error(reason));
    }
    if (io != Io::ok) throw PeerLost(describe(io));
    if (done == 1) break;
    if (code != kWantRead) throw PeerLost("the connection was closed during the TLS handshake");
    throw_if<PeerLost>(left <= 0 || wait_for(fd_, POLLIN, milliseconds(left)) == 0,
                       "the other side stopped during the TLS handshake");
  }
  send_ms_ = -1;
}

void TlsSession::check_peer(Ssl* ssl, const std::string& role) {
  X509* certificate = o_.SSL_get1_peer_certificate(ssl);
  const TlsName other = name_in(certificate);
  if (certificate != nullptr) o_.X509_free(certificate);
  if (other.job != context_->own.job) {
    throw HandshakeRefused("its certificate is for the job '", other.job, "', this is '", context_->own.job, "'");
  }
  throw_if<HandshakeRefused>(!role.empty() && other.role != role, "its certificate is for a ", other.role, "; a ", role,
                             " was called");
}

std::string TlsSession::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

bool TlsSession::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

Io TlsSession::failed(const std::string& why, bool refused) {
  const std::lock_guard lock(mutex_);
  why_ = why;
  refused_ = refused;
  errno = EPROTO;
  return Io::failed;
}

Io TlsSession::flush(bool wait) {
  while (gone_ < made_) {
    const ssize_t sent = ::send(fd_, going_.get() + gone_, made_ - gone_, MSG_NOSIGNAL | MSG_DONTWAIT);
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
  made_ = gone_ = 0;
  return Io::ok;
}

void TlsSession::seal_records(RecordKind kind, const uint8_t* from, size_t bytes) {
  for (size_t done = 0; done < bytes; done += kRecord) {
    made_ += sealer_->seal(kind, from + done, std::min(kRecord, bytes - done), going_.get() + made_);
  }
}

size_t TlsSession::seal(const std::vector<iovec>& buffers, size_t most) {
  if (sealer_->sealed() >= rekey_bytes_ || asked_for_key_.exchange(false)) {
    const uint8_t update[] = {kKeyUpdate, 0, 0, 1, 0};  // the last byte: the other side need not update its key
    seal_records(RecordKind::handshake, update, sizeof update);
    sealer_->take_next_key();
  }
  size_t taken = 0, filled = 0;
  for (size_t i = 0, at = 0; i < buffers.size() && taken < most;) {
    const auto* from = static_cast<const uint8_t*>(buffers[i].iov_base) + at;
    const size_t left = buffers[i].iov_len - at;
    size_t moved = 0;
    if (filled == 0 && left >= kRecord) {  // encrypts whole records directly from the caller's memory
      moved = std::min(left, most - taken) / kRecord * kRecord;
      seal_records(RecordKind::data, from, moved);
    } else {
      moved = std::min(left, kRecord - filled);
      if (moved != 0) std::memcpy(gathered_.get() + filled, from, moved);
      filled += moved;
      if (filled == kRecord) seal_records(RecordKind::data, gathered_.get(), std::exchange(filled, 0));
    }
    taken += moved;
    at += moved;
    if (at == buffers[i].iov_len) ++i, at = 0;
  }
  seal_records(RecordKind::data, gathered_.get(), filled);
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
  }
}

size_t TlsSession::record_begun() const {
  const uint8_t* header = ahead_.get() + at_;
  return filled_ - at_ < kRecordHeader ? kRecordHeader
                                       : kRecordHeader + (static_cast<size_t>(header[3]) << 8 | header[4]);
}

Io TlsSession::fetch() {
  if (at_ != 0 && kAhead - at_ < kLongest) {  // makes room for the rest of a record
    std::memmove(ahead_.get(), ahead_.get() + at_, filled_ - at_);
    filled_ -= std::exchange(at_, 0);
  }
  const size_t most = exact_ ? record_begun() - (filled_ - at_) : kAhead - filled_;
  while (true) {
    const ssize_t got = recv(fd_, ahead_.get() + filled_, most, MSG_DONTWAIT);
    if (got > 0) {
      filled_ += static_cast<size_t>(got);
      return Io::ok;
    }
    if (got == 0) {
      ended_ = true;
      return Io::closed;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const int ready = wait_for(fd_, POLLIN, receive_ms_);
      if (ready <= 0) return ready == 0 ? Io::idle : Io::failed;
    } else if (errno != EINTR) {
      return Io::failed;
    }
  }
}

Io TlsSession::receive_some(uint8_t* out, size_t bytes, size_t& got) {
  while (true) {
    if (text_at_ < text_end_) {
      got = std::min(bytes, text_end_ - text_at_);
      std::memcpy(out, text_.get() + text_at_, got);
      text_at_ += got;
      return Io::ok;
    }
    if (ended_) return Io::closed;
    if (at_ == filled_) at_ = filled_ = 0;
    const size_t here = filled_ - at_, record = record_begun();
    if (here != 0 && (ahead_[at_] != static_cast<uint8_t>(RecordKind::data) || record > kLongest)) {
      return failed("TLS failed: the received bytes are not a record of this connection");
    }
    const bool whole = here >= record;
    const Io io = whole ? open_record(record, out, bytes, got) : fetch();
    if (io != Io::ok || (whole && got != 0)) return io;
  }
}

Io TlsSession::open_record(size_t record, uint8_t* out, size_t bytes, size_t& got) {
  const uint8_t* sealed = ahead_.get() + at_;
  at_ += record;
  got = 0;
  const bool fits = record <= kRecordHeader + bytes + 1 + kRecordTag;  // decrypts directly into the caller's memory
  uint8_t* text = fits ? out : text_.get();
  size_t length = 0;
  RecordKind kind{};
  if (!opener_->open(sealed, text, length, kind)) {
    return failed("TLS failed: a record was altered, or belongs to another connection");
  }
  if (kind != RecordKind::data) return take_word(kind, text, length);
  if (fits) {
    got = length;
  } else {
    text_at_ = 0;
    text_end_ = length;
    got = std::min(bytes, length);
    std::memcpy(out, text_.get(), got);
    text_at_ = got;
  }
  return Io::ok;
}

Io TlsSession::take_word(RecordKind kind, const uint8_t* text, size_t bytes) {
  if (kind == RecordKind::alert && bytes == 2) {
    if (text[1] == kCloseNotify) {
      ended_ = true;
      return Io::closed;
    }
    return failed(explain_tls_error(std::string("alert: ") + o_.SSL_alert_desc_string_long(text[1])), true);
  }
  if (kind == RecordKind::handshake && bytes == 5 && text[0] == kKeyUpdate && text[4] <= 1) {
    opener_->take_next_key();
    if (text[4] == 1) asked_for_key_ = true;
    return Io::ok;
  }
  if (kind == RecordKind::handshake && bytes > 0 && text[0] == kNewTicket) return Io::ok;
  return failed("TLS failed: unexpected message");
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
