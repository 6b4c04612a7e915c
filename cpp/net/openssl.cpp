#include "net/openssl.h"

#include <dlfcn.h>

#include <array>
#include <string>

#include "base/types.h"

namespace springtide {
namespace {

struct Libraries {
  void* ssl = nullptr;
  void* crypto = nullptr;
};

// Prefers libraries that are already loaded. A second version would work, but would take memory.
Libraries open_libraries() {
  constexpr std::array<std::array<const char*, 2>, 2> known = {
      {{"libssl.so.3", "libcrypto.so.3"}, {"libssl.so.1.1", "libcrypto.so.1.1"}}};
  for (const int loaded : {RTLD_NOLOAD, 0}) {
    for (const auto& [ssl, crypto] : known) {
      Libraries found{dlopen(ssl, RTLD_NOW | RTLD_LOCAL | loaded), nullptr};
      if (found.ssl != nullptr) found.crypto = dlopen(crypto, RTLD_NOW | RTLD_LOCAL);
      if (found.crypto != nullptr) return found;
    }
  }
  throw BadInput(
      "TLS between workers and servers needs OpenSSL, and libssl.so.3 (or libssl.so.1.1) cannot be loaded "
      "here; install the system's package openssl or libssl3");
}

template <typename Function>
void look_up(const Libraries& from, Function*& into, const std::string& name) {
  void* found = dlsym(from.ssl, name.c_str());
  if (found == nullptr) found = dlsym(from.crypto, name.c_str());
  // The function's name in OpenSSL 1.1.1.
  if (found == nullptr && name == "SSL_get1_peer_certificate") found = dlsym(from.ssl, "SSL_get_peer_certificate");
  throw_if<BadInput>(found == nullptr, "the OpenSSL of this machine has no ", name, "; wanted version 1.1.1 or later");
  into = reinterpret_cast<Function*>(found);
}

OpenSsl load() {
  const Libraries from = open_libraries();
  OpenSsl all{};
#define SPRINGTIDE_LOOK_UP(result, name, ...) look_up(from, all.name, #name);
  SPRINGTIDE_OPENSSL(SPRINGTIDE_LOOK_UP)
#undef SPRINGTIDE_LOOK_UP
  return all;
}

}  // namespace

const OpenSsl& openssl() {
  // never unloaded, because other threads may still use the library when the process ends
  static const OpenSsl all = load();
  return all;
}

}  // namespace springtide
