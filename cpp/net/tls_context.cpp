#include "net/tls_context.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "base/types.h"
#include "net/tls_records.h"

namespace springtide {
namespace {

constexpr int kSetMinimum = 123, kTls13 = 0x0304;
constexpr int kVerifyPeer = 1, kFailWithout = 2;
constexpr int kPem = 1;
constexpr uint64_t kNoTicket = 1 << 14;
constexpr int kAlternativeNames = 85, kUri = 6;
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";  // the one that all must have, and that tls_records.h has
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
      throw BadInput("the certificates in " + folder + " cannot be used: " + (name + 1) + ": " + std::strerror(errno));
    }
    stamp[at++] = static_cast<int64_t>(found.st_ino);
    stamp[at++] = found.st_mtim.tv_sec;
    stamp[at++] = found.st_mtim.tv_nsec;
    stamp[at++] = found.st_size;
  }
  return stamp;
}

void note_secret(const Ssl* ssl, const char* line) {
  auto* secrets = static_cast<TlsSecrets*>(openssl().SSL_get_ex_data(ssl, kSecrets));
  if (secrets != nullptr) secrets->note(line);
}

// The folder's files as a context; empty, and why, when they do not fit together.
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

}  // namespace

TlsContext::~TlsContext() {
  if (ctx != nullptr) openssl().SSL_CTX_free(ctx);
}

std::shared_ptr<const TlsContext> tls_context(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, Known> known;
  const std::lock_guard lock(mutex);
  std::string why;
  for (int attempt = 0; attempt < 3; ++attempt) {  // files may be renewed while they are read
    const Stamp stamp = stamp_of(folder);
    Known& entry = known[folder];
    if (entry.context && entry.stamp == stamp) return entry.context;
    auto made = read(folder, why);
    if (made && stamp_of(folder) == stamp) {
      entry = {stamp, made};
      return made;
    }
  }
  throw BadInput("the certificates in " + folder + " cannot be used: " + (why.empty() ? "they keep changing" : why) +
                 "; wanted ca.crt, tls.crt and tls.key of this job");
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
  return reason == nullptr ? "no reason was given" : reason;
}

}  // namespace springtide
