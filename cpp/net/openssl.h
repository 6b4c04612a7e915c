// OpenSSL functions, looked up at run time: the build needs no OpenSSL, and processes without TLS never load
// it. Prefers the library that Python's ssl module has loaded. Next: tls_session.h.
#pragma once

#include <cstddef>
#include <cstdint>

// OpenSSL's own opaque types.
struct ssl_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct bio_st;
struct bio_method_st;
struct x509_st;
struct evp_cipher_st;
struct evp_cipher_ctx_st;

namespace springtide {

using Ssl = ssl_st;
using SslCtx = ssl_ctx_st;
using Bio = bio_st;
using BioMethod = bio_method_st;
using X509 = x509_st;
using Cipher = evp_cipher_st;
using CipherCtx = evp_cipher_ctx_st;

// Result type, name and arguments of each function.
#define SPRINGTIDE_OPENSSL(F)                                                                                  \
  F(const ssl_method_st*, TLS_method)                                                                          \
  F(SslCtx*, SSL_CTX_new, const ssl_method_st*)                                                                \
  F(void, SSL_CTX_free, SslCtx*)                                                                               \
  F(long, SSL_CTX_ctrl, SslCtx*, int, long, void*)                                                             \
  F(uint64_t, SSL_CTX_set_options, SslCtx*, uint64_t)                                                          \
  F(void, SSL_CTX_set_verify, SslCtx*, int, int (*)(int, void*))                                               \
  F(int, SSL_CTX_use_certificate_chain_file, SslCtx*, const char*)                                             \
  F(int, SSL_CTX_use_PrivateKey_file, SslCtx*, const char*, int)                                               \
  F(int, SSL_CTX_check_private_key, const SslCtx*)                                                             \
  F(int, SSL_CTX_load_verify_locations, SslCtx*, const char*, const char*)                                     \
  F(int, SSL_CTX_set_ciphersuites, SslCtx*, const char*)                                                       \
  F(int, SSL_CTX_set_num_tickets, SslCtx*, size_t)                                                             \
  F(X509*, SSL_CTX_get0_certificate, const SslCtx*)                                                            \
  F(void, SSL_CTX_set_keylog_callback, SslCtx*, void (*)(const Ssl*, const char*))                             \
  F(int, SSL_set_ex_data, Ssl*, int, void*)                                                                    \
  F(void*, SSL_get_ex_data, const Ssl*, int)                                                                   \
  F(Ssl*, SSL_new, SslCtx*)                                                                                    \
  F(void, SSL_free, Ssl*)                                                                                      \
  F(void, SSL_set_bio, Ssl*, Bio*, Bio*)                                                                       \
  F(void, SSL_set_accept_state, Ssl*)                                                                          \
  F(void, SSL_set_connect_state, Ssl*)                                                                         \
  F(const char*, SSL_alert_desc_string_long, int)                                                              \
  F(int, SSL_do_handshake, Ssl*)                                                                               \
  F(int, SSL_get_error, const Ssl*, int)                                                                       \
  F(long, SSL_get_verify_result, const Ssl*)                                                                   \
  F(X509*, SSL_get1_peer_certificate, const Ssl*)                                                              \
  F(int, BIO_get_new_index)                                                                                    \
  F(BioMethod*, BIO_meth_new, int, const char*)                                                                \
  F(int, BIO_meth_set_read, BioMethod*, int (*)(Bio*, char*, int))                                             \
  F(int, BIO_meth_set_write, BioMethod*, int (*)(Bio*, const char*, int))                                      \
  F(int, BIO_meth_set_ctrl, BioMethod*, long (*)(Bio*, int, long, void*))                                      \
  F(Bio*, BIO_new, const BioMethod*)                                                                           \
  F(void, BIO_set_data, Bio*, void*)                                                                           \
  F(void*, BIO_get_data, Bio*)                                                                                 \
  F(void, BIO_set_init, Bio*, int)                                                                             \
  F(void, BIO_set_flags, Bio*, int)                                                                            \
  F(void, BIO_clear_flags, Bio*, int)                                                                          \
  F(void, ERR_clear_error)                                                                                     \
  F(unsigned long, ERR_peek_error)                                                                             \
  F(const char*, ERR_reason_error_string, unsigned long)                                                       \
  F(const char*, X509_verify_cert_error_string, long)                                                          \
  F(void, X509_free, X509*)                                                                                    \
  F(void*, X509_get_ext_d2i, const X509*, int, int*, int*)                                                     \
  F(int, OPENSSL_sk_num, const void*)                                                                          \
  F(void*, OPENSSL_sk_value, const void*, int)                                                                 \
  F(void*, GENERAL_NAME_get0_value, const void*, int*)                                                         \
  F(void, GENERAL_NAMES_free, void*)                                                                           \
  F(int, ASN1_STRING_length, const void*)                                                                      \
  F(const unsigned char*, ASN1_STRING_get0_data, const void*)                                                  \
  F(CipherCtx*, EVP_CIPHER_CTX_new)                                                                            \
  F(void, EVP_CIPHER_CTX_free, CipherCtx*)                                                                     \
  F(const Cipher*, EVP_aes_128_gcm)                                                                            \
  F(int, EVP_CipherInit_ex, CipherCtx*, const Cipher*, void*, const unsigned char*, const unsigned char*, int) \
  F(int, EVP_CipherUpdate, CipherCtx*, unsigned char*, int*, const unsigned char*, int)                        \
  F(int, EVP_CipherFinal_ex, CipherCtx*, unsigned char*, int*)                                                 \
  F(int, EVP_CIPHER_CTX_ctrl, CipherCtx*, int, int, void*)

struct OpenSsl {
#define SPRINGTIDE_POINTER(result, name, ...) result (*name)(__VA_ARGS__);
  SPRINGTIDE_OPENSSL(SPRINGTIDE_POINTER)
#undef SPRINGTIDE_POINTER
};

const OpenSsl& openssl();  // BadInput if OpenSSL 1.1.1 or later is not found

}  // namespace springtide
