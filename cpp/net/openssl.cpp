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

// One that is loaded already first: two versions in one process would each work, but twice the code is read.
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
void look_up(const Libraries& from, Function*& into, const char* name, const char* older = nullptr) {
  void* found = dlsym(from.ssl, name);
  if (found == nullptr) found = dlsym(from.crypto, name);
  if (found == nullptr && older != nullptr) found = dlsym(from.ssl, older);
  if (found == nullptr) {
    throw BadInput(std::string("the OpenSSL of this machine has no ") + name + "; wanted version 1.1.1 or later");
  }
  into = reinterpret_cast<Function*>(found);
}

OpenSsl load() {
  const Libraries from = open_libraries();
  OpenSsl all{};
#define SPRINGTIDE_LOOK_UP(name) look_up(from, all.name, #name)
  SPRINGTIDE_LOOK_UP(TLS_method);
  SPRINGTIDE_LOOK_UP(SSL_CTX_new);
  SPRINGTIDE_LOOK_UP(SSL_CTX_free);
  SPRINGTIDE_LOOK_UP(SSL_CTX_ctrl);
  SPRINGTIDE_LOOK_UP(SSL_CTX_set_options);
  SPRINGTIDE_LOOK_UP(SSL_CTX_set_verify);
  SPRINGTIDE_LOOK_UP(SSL_CTX_use_certificate_chain_file);
  SPRINGTIDE_LOOK_UP(SSL_CTX_use_PrivateKey_file);
  SPRINGTIDE_LOOK_UP(SSL_CTX_check_private_key);
  SPRINGTIDE_LOOK_UP(SSL_CTX_load_verify_locations);
  SPRINGTIDE_LOOK_UP(SSL_CTX_set_ciphersuites);
  SPRINGTIDE_LOOK_UP(SSL_CTX_set_num_tickets);
  SPRINGTIDE_LOOK_UP(SSL_CTX_get0_certificate);
  SPRINGTIDE_LOOK_UP(SSL_CTX_set_keylog_callback);
  SPRINGTIDE_LOOK_UP(SSL_set_ex_data);
  SPRINGTIDE_LOOK_UP(SSL_get_ex_data);
  SPRINGTIDE_LOOK_UP(SSL_new);
  SPRINGTIDE_LOOK_UP(SSL_free);
  SPRINGTIDE_LOOK_UP(SSL_set_bio);
  SPRINGTIDE_LOOK_UP(SSL_set_accept_state);
  SPRINGTIDE_LOOK_UP(SSL_set_connect_state);
  SPRINGTIDE_LOOK_UP(SSL_do_handshake);
  SPRINGTIDE_LOOK_UP(SSL_get_error);
  SPRINGTIDE_LOOK_UP(SSL_get_verify_result);
  look_up(from, all.SSL_get1_peer_certificate, "SSL_get1_peer_certificate", "SSL_get_peer_certificate");
  SPRINGTIDE_LOOK_UP(BIO_get_new_index);
  SPRINGTIDE_LOOK_UP(BIO_meth_new);
  SPRINGTIDE_LOOK_UP(BIO_meth_set_read);
  SPRINGTIDE_LOOK_UP(BIO_meth_set_write);
  SPRINGTIDE_LOOK_UP(BIO_meth_set_ctrl);
  SPRINGTIDE_LOOK_UP(BIO_new);
  SPRINGTIDE_LOOK_UP(BIO_set_data);
  SPRINGTIDE_LOOK_UP(BIO_get_data);
  SPRINGTIDE_LOOK_UP(BIO_set_init);
  SPRINGTIDE_LOOK_UP(BIO_set_flags);
  SPRINGTIDE_LOOK_UP(BIO_clear_flags);
  SPRINGTIDE_LOOK_UP(ERR_clear_error);
  SPRINGTIDE_LOOK_UP(ERR_peek_error);
  SPRINGTIDE_LOOK_UP(ERR_reason_error_string);
  SPRINGTIDE_LOOK_UP(X509_verify_cert_error_string);
  SPRINGTIDE_LOOK_UP(X509_free);
  SPRINGTIDE_LOOK_UP(X509_get_ext_d2i);
  SPRINGTIDE_LOOK_UP(OPENSSL_sk_num);
  SPRINGTIDE_LOOK_UP(OPENSSL_sk_value);
  SPRINGTIDE_LOOK_UP(GENERAL_NAME_get0_value);
  SPRINGTIDE_LOOK_UP(GENERAL_NAMES_free);
  SPRINGTIDE_LOOK_UP(ASN1_STRING_length);
  SPRINGTIDE_LOOK_UP(ASN1_STRING_get0_data);
  SPRINGTIDE_LOOK_UP(EVP_CIPHER_CTX_new);
  SPRINGTIDE_LOOK_UP(EVP_CIPHER_CTX_free);
  SPRINGTIDE_LOOK_UP(EVP_aes_128_gcm);
  SPRINGTIDE_LOOK_UP(EVP_CipherInit_ex);
  SPRINGTIDE_LOOK_UP(EVP_CipherUpdate);
  SPRINGTIDE_LOOK_UP(EVP_CipherFinal_ex);
  SPRINGTIDE_LOOK_UP(EVP_CIPHER_CTX_ctrl);
#undef SPRINGTIDE_LOOK_UP
  return all;
}

}  // namespace

const OpenSsl& openssl() {
  static const OpenSsl all = load();  // never given back: other threads may be in it when the process ends
  return all;
}

}  // namespace springtide
