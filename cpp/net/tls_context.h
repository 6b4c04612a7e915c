// Loads this process's certificates (ca.crt, tls.crt, tls.key) from a folder, again when the files change,
// and reads the name springtide:JOB/ROLE in tls.crt. The same in Python: springtide/rpc/transport/tls.py.
// Next: tls_session.h.
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
