// Encrypts or decrypts TLS 1.3 records (RFC 8446, section 5) in one direction, directly between the caller's memory and
// the socket buffer. OpenSSL does the handshake and the cipher. SSL_read and SSL_write would copy each byte two more
// times (docs/design/tls.md).
#pragma once

#include <cstdint>

#include "base/sha256.h"
#include "base/types.h"
#include "net/openssl.h"

namespace springtide {

constexpr size_t kRecord = 16384;  // maximum bytes of plain text in one record
constexpr size_t kRecordHeader = 5, kRecordTag = 16;
constexpr size_t kSealed = kRecordHeader + kRecord + 1 + kRecordTag;  // maximum size of a record that this side makes
constexpr size_t kLongest = kRecordHeader + kRecord + 256;            // maximum size of a record that this side accepts

enum class RecordKind : uint8_t { alert = 21, handshake = 22, data = 23 };

// Secrets of a handshake, which OpenSSL's callback sets (tls_session.cpp).
struct TlsSecrets {
  Digest caller{}, listener{};
  bool has_caller = false, has_listener = false;
  void note(const char* line);  // takes a line of a key log: LABEL CLIENT_RANDOM SECRET
};

struct RecordKey {
  std::array<uint8_t, 16> key;
  std::array<uint8_t, 12> nonce;
};
RecordKey record_key(const Digest& secret);
Digest next_secret(const Digest& secret);  // after a KeyUpdate

// Cipher of one direction. Not thread-safe.
class RecordCipher : public NoCopy {
 public:
  enum class Way : uint8_t { opens = 0, seals = 1 };
  RecordCipher(const Digest& secret, Way way);
  ~RecordCipher();

  // Encrypts one record. `out` has room for kSealed bytes. Returns the size of the record.
  size_t seal(RecordKind kind, const uint8_t* from, size_t bytes, uint8_t* out);
  // Decrypts a whole record, including its header. `out` has room for the text. The kind, which is the last byte, is
  // not written to it. Returns false if the record was changed or belongs to another connection; `out` is then
  // undefined.
  bool open(const uint8_t* record, uint8_t* out, size_t& bytes, RecordKind& kind);
  void take_next_key();
  uint64_t sealed() const { return bytes_; }  // bytes encrypted with the current key

 private:
  bool begin(const uint8_t* header);
  bool update(uint8_t* out, const uint8_t* from, size_t bytes);
  void use(const Digest& secret);

  const OpenSsl& o_;
  const Way way_;
  CipherCtx* ctx_;
  Digest secret_;
  std::array<uint8_t, 12> nonce_{};
  uint64_t number_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace springtide
