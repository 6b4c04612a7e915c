// TLS on one connected socket: the handshake, then bytes both ways, by the same calls as on a plain one
// (socket.h). One thread may send while another receives. In: certificates (tls_context.h). Out: a peer of
// this job, checked. Next: link.h, and handshake.h as ever: the job's secret is proved within.
//
// Checked: TLS 1.3, a certificate of the job's authority that is valid now, the job's name in it and, by a
// caller, the role that was called. Host names are not: servers move.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "socket.h"
#include "tls_context.h"

namespace springtide {

enum class TlsSide : uint8_t { caller, listener };

struct TlsOptions {
  std::string folder;
  TlsSide side = TlsSide::caller;
  std::string role;  // that the other side must have; empty: any of this job
  double within_s = 10;
  // Take no byte off the socket beyond the record that is read: a poll then tells of what comes next, where
  // messages end with a record.
  bool exact = false;
  // A key is good for some 2^24 records of AES-GCM; long before that another one is taken.
  uint64_t rekey_bytes = 32ULL << 30;
};

class TlsSession {
 public:
  // Does the handshake. HandshakeRefused when one side does not want the other, PeerLost when the connection
  // broke or took too long, BadInput for our own certificates.
  TlsSession(int fd, const TlsOptions& options);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  void set_timeouts(double receive_s, double send_s);  // 0: forever
  // What was left in the list, because the kernel took no more, must come first in the next call.
  Io send(std::vector<iovec>& buffers, bool wait);
  Io receive(void* out, size_t bytes);
  Io receive(std::vector<iovec>& buffers);

  std::string why() const;  // after Io::failed; empty where errno says it
  bool refused() const;     // the other side has said that it does not want us

 private:
  static int read_socket(Bio* bio, char* out, int bytes);
  static int write_batch(Bio* bio, const char* from, int bytes);
  static long control(Bio* bio, int command, long, void*);
  static const BioMethod* method();

  void shake_hands(double within_s);
  void check_peer(const std::string& role);
  Io receive_some(void* out, size_t bytes, size_t& got);
  Io failed(int code);
  Io flush(bool wait);
  size_t seal(const std::vector<iovec>& buffers, size_t most);  // bytes that are in batch_ now; 0: it failed
  bool write(const void* from, size_t bytes);

  const int fd_;
  const OpenSsl& o_;
  const std::shared_ptr<const TlsContext> context_;
  mutable std::mutex mutex_;  // of the next eight: OpenSSL's objects are for one thread at a time
  Ssl* ssl_;
  std::string why_;
  bool refused_ = false;
  std::vector<uint8_t> batch_;        // encrypted, not handed to the kernel yet
  bool ended_ = false;                // the peer has closed its side
  std::unique_ptr<uint8_t[]> ahead_;  // off the socket, from `at_` to `filled_`; none: exact
  size_t at_ = 0, filled_ = 0;
  std::vector<uint8_t> going_;  // what is being handed over, from `gone_` on; the sender's
  size_t gone_ = 0;
  const uint64_t rekey_bytes_;
  uint64_t by_this_key_ = 0;  // bytes that were encrypted
  size_t sealed_ = 0;         // bytes of the caller's list that are in `going_`
  std::unique_ptr<uint8_t[]> record_;
  int receive_ms_ = -1, send_ms_ = -1;
};

}  // namespace springtide
