// TLS on one connected socket: a handshake, and then sending and receiving as on a plain socket (socket.h). One thread
// may send while a second thread receives. OpenSSL does the handshake, and tls_records.h does the records. The session
// requires TLS 1.3 and a valid certificate of the job's authority with the job's name. A caller also checks the role of
// the listener. Host names are not checked, because servers move.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/openssl.h"
#include "net/socket.h"
#include "net/tls_records.h"

namespace springtide {

struct TlsContext;  // this process's certificates

// Reads ca.crt, tls.crt and tls.key from the folder, and reads them again when they change. Throws BadInput if the
// files are missing or do not match each other. springtide/rpc/transport/tls.py does the same in Python.
std::shared_ptr<const TlsContext> tls_context(const std::string& folder);

enum class TlsSide : uint8_t { caller, listener };

struct TlsOptions {
  std::string folder;
  TlsSide side = TlsSide::caller;
  std::string role;  // required role of the other side; empty: any role of this job
  double within_s = 10;
  // Reads no byte after the current record, so that poll() reports the next record. The peer must then
  // end every message at the end of a record.
  bool exact = false;
  // An AES-GCM key is safe for about 2^24 records; the session changes the key long before.
  uint64_t rekey_bytes = 32ULL << 30;
};

class TlsSession : public NoCopy {
 public:
  // Does the handshake. Throws HandshakeRefused if one side rejects the other, PeerLost if the connection broke or took
  // too long, and BadInput if this side's certificates are invalid.
  TlsSession(int fd, const TlsOptions& options);
  // Continues after a handshake that was done elsewhere, with its secrets.
  struct Secrets {
    Digest receives, sends;
  };
  TlsSession(int fd, const Secrets& secrets, bool exact);
  ~TlsSession();

  void set_timeouts(double receive_s, double send_s);  // 0: forever
  // If buffers are left in the list because the socket would have blocked, the next call must begin with them.
  Io send(std::vector<iovec>& buffers, bool wait);
  Io receive(void* out, size_t bytes);
  Io receive(std::vector<iovec>& buffers);

  std::string why() const;  // the reason after Io::failed; empty if errno has the reason
  bool refused() const;     // true if the other side has rejected this side's certificate

 private:
  TlsSession(int fd, std::shared_ptr<const TlsContext> context, bool exact, uint64_t rekey_bytes);
  static int read_socket(Bio* bio, char* out, int bytes);
  static int write_flight(Bio* bio, const char* from, int bytes);
  static long control(Bio* bio, int command, long, void*);
  static const BioMethod* method();

  void shake_hands(Ssl* ssl, double within_s);
  void check_peer(Ssl* ssl, const std::string& role);
  Io flush(bool wait);
  // Returns how many bytes of the list `going_` now contains.
  size_t seal(const std::vector<iovec>& buffers, size_t most);
  void seal_records(RecordKind kind, const uint8_t* from, size_t bytes);
  Io receive_some(uint8_t* out, size_t bytes, size_t& got);
  // size of the record at `at_`; until the record's header has arrived, the size of a header
  size_t record_begun() const;
  Io fetch();  // reads more from the socket
  Io open_record(size_t record, uint8_t* out, size_t bytes, size_t& got);
  Io take_word(RecordKind kind, const uint8_t* text, size_t bytes);  // handles alerts and handshake messages
  Io failed(const std::string& why, bool refused = false);

  const int fd_;
  const OpenSsl& o_;
  const std::shared_ptr<const TlsContext> context_;
  const bool exact_;
  const uint64_t rekey_bytes_;
  int receive_ms_ = -1, send_ms_ = -1;

  // Only the sending thread uses these:
  std::optional<RecordCipher> sealer_;
  std::unique_ptr<uint8_t[]> going_;  // encrypted bytes; those from `gone_` to `made_` are not sent yet
  size_t made_ = 0, gone_ = 0;
  size_t sealed_ = 0;                    // number of bytes of the caller's list in `going_`
  std::unique_ptr<uint8_t[]> gathered_;  // small buffers that are collected into one record

  // Only the receiving thread uses these:
  std::optional<RecordCipher> opener_;
  std::unique_ptr<uint8_t[]> ahead_;  // bytes that were read from the socket, from `at_` to `filled_`
  size_t at_ = 0, filled_ = 0;
  std::unique_ptr<uint8_t[]> text_;  // the rest of a record that did not fit into the caller's buffer
  size_t text_at_ = 0, text_end_ = 0;
  bool ended_ = false;  // the peer has closed its side

  std::atomic<bool> asked_for_key_{false};  // true if the other side has requested a new key for what this side sends
  mutable std::mutex mutex_;                // guards the next two
  std::string why_;
  bool refused_ = false;
};

// Owns a socket and, in a job with certificates, its TLS session. Calls that move bytes take its `Line` (socket.h).
class Link {
 public:
  Link() = default;
  Link(Fd fd) : fd_(std::move(fd)) {}  // NOLINT: a socket is a link without TLS
  // Does the TLS handshake if `tls` has a folder. Throws as TlsSession does.
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
  std::unique_ptr<TlsSession> tls_;  // destroyed before the socket
};

}  // namespace springtide
