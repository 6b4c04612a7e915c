// Certificates of this process as OpenSSL wants them: read from a folder (ca.crt, tls.crt, tls.key), again
// when the files have changed. In: Settings.tls. Out: a context for new connections, and whom it speaks for:
// the URI springtide:JOB/ROLE in tls.crt. springtide/rpc/transport/tls.py is the same in Python. Next:
// tls_session.h.
#pragma once

#include <memory>
#include <string>

#include "net/openssl.h"

namespace springtide {

struct TlsName {
  std::string job;   // as it is written there, escapes and all
  std::string role;  // worker, server, ...
};

constexpr int kSecrets = 0;  // of an Ssl's own data: its TlsSecrets, filled in while it shakes hands

struct TlsContext {
  explicit TlsContext(SslCtx* made) : ctx(made) {}
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SslCtx* ctx;
  TlsName own;
};

// As the files are now. BadInput when they are missing, or do not belong together.
std::shared_ptr<const TlsContext> tls_context(const std::string& folder);

TlsName name_in(X509* certificate);  // empty where it has none
std::string tls_error();             // what OpenSSL has against the last call of this thread

}  // namespace springtide
