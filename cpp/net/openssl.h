// OpenSSL functions, looked up at run time: the build needs no OpenSSL, and processes without TLS never load
// it. Prefers the library that Python's ssl module has loaded. Next: tls_context.h, tls_session.h.
#pragma once

#include <cstddef>
#include <cstdint>

// Their names and their meaning are OpenSSL's; what they point to is its own business.
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

struct OpenSsl {
  const ssl_method_st* (*TLS_method)();
  SslCtx* (*SSL_CTX_new)(const ssl_method_st*);
  void (*SSL_CTX_free)(SslCtx*);
  long (*SSL_CTX_ctrl)(SslCtx*, int, long, void*);
  uint64_t (*SSL_CTX_set_options)(SslCtx*, uint64_t);
  void (*SSL_CTX_set_verify)(SslCtx*, int, int (*)(int, void*));
  int (*SSL_CTX_use_certificate_chain_file)(SslCtx*, const char*);
  int (*SSL_CTX_use_PrivateKey_file)(SslCtx*, const char*, int);
  int (*SSL_CTX_check_private_key)(const SslCtx*);
  int (*SSL_CTX_load_verify_locations)(SslCtx*, const char*, const char*);
  int (*SSL_CTX_set_ciphersuites)(SslCtx*, const char*);
  int (*SSL_CTX_set_num_tickets)(SslCtx*, size_t);
  X509* (*SSL_CTX_get0_certificate)(const SslCtx*);
  void (*SSL_CTX_set_keylog_callback)(SslCtx*, void (*)(const Ssl*, const char*));
  int (*SSL_set_ex_data)(Ssl*, int, void*);
  void* (*SSL_get_ex_data)(const Ssl*, int);
  Ssl* (*SSL_new)(SslCtx*);
  void (*SSL_free)(Ssl*);
  void (*SSL_set_bio)(Ssl*, Bio*, Bio*);
  void (*SSL_set_accept_state)(Ssl*);
  void (*SSL_set_connect_state)(Ssl*);
  int (*SSL_do_handshake)(Ssl*);
  int (*SSL_get_error)(const Ssl*, int);
  long (*SSL_get_verify_result)(const Ssl*);
  X509* (*SSL_get1_peer_certificate)(const Ssl*);
  int (*BIO_get_new_index)();
  BioMethod* (*BIO_meth_new)(int, const char*);
  int (*BIO_meth_set_read)(BioMethod*, int (*)(Bio*, char*, int));
  int (*BIO_meth_set_write)(BioMethod*, int (*)(Bio*, const char*, int));
  int (*BIO_meth_set_ctrl)(BioMethod*, long (*)(Bio*, int, long, void*));
  Bio* (*BIO_new)(const BioMethod*);
  void (*BIO_set_data)(Bio*, void*);
  void* (*BIO_get_data)(Bio*);
  void (*BIO_set_init)(Bio*, int);
  void (*BIO_set_flags)(Bio*, int);
  void (*BIO_clear_flags)(Bio*, int);
  void (*ERR_clear_error)();
  unsigned long (*ERR_peek_error)();
  const char* (*ERR_reason_error_string)(unsigned long);
  const char* (*X509_verify_cert_error_string)(long);
  void (*X509_free)(X509*);
  void* (*X509_get_ext_d2i)(const X509*, int, int*, int*);
  int (*OPENSSL_sk_num)(const void*);
  void* (*OPENSSL_sk_value)(const void*, int);
  void* (*GENERAL_NAME_get0_value)(const void*, int*);
  void (*GENERAL_NAMES_free)(void*);
  int (*ASN1_STRING_length)(const void*);
  const unsigned char* (*ASN1_STRING_get0_data)(const void*);
  CipherCtx* (*EVP_CIPHER_CTX_new)();
  void (*EVP_CIPHER_CTX_free)(CipherCtx*);
  const Cipher* (*EVP_aes_128_gcm)();
  int (*EVP_CipherInit_ex)(CipherCtx*, const Cipher*, void*, const unsigned char*, const unsigned char*, int);
  int (*EVP_CipherUpdate)(CipherCtx*, unsigned char*, int*, const unsigned char*, int);
  int (*EVP_CipherFinal_ex)(CipherCtx*, unsigned char*, int*);
  int (*EVP_CIPHER_CTX_ctrl)(CipherCtx*, int, int, void*);
};

const OpenSsl& openssl();  // BadInput when there is none of version 1.1.1 or later

}  // namespace springtide
