#include "net/tls_records.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

namespace springtide {
namespace {

constexpr int kGetTag = 0x10, kSetTag = 0x11;

// HKDF-Expand-Label without context, for at most one block: RFC 8446, section 7.1.
Digest expand(const Digest& secret, std::string_view label, uint8_t bytes) {
  std::string info = {'\0', static_cast<char>(bytes), static_cast<char>(6 + label.size())};
  info += "tls13 ";
  info += label;
  info += {'\0', '\1'};
  return hmac_sha256(secret, {reinterpret_cast<const uint8_t*>(info.data()), info.size()});
}

bool read_hex(std::string_view text, Digest& out) {
  if (text.size() != 2 * out.size()) return false;
  for (size_t i = 0; i < out.size(); ++i) {
    const char* const end = text.data() + 2 * i + 2;
    if (const auto [read, error] = std::from_chars(end - 2, end, out[i], 16); read != end || error != std::errc()) {
      return false;
    }
  }
  return true;
}

}  // namespace

void TlsSecrets::note(const char* line) {
  const std::string_view text(line);
  const std::string_view secret = text.substr(std::min(text.size(), text.rfind(' ') + 1));
  if (text.rfind("CLIENT_TRAFFIC_SECRET_0 ", 0) == 0) has_caller = read_hex(secret, caller);
  if (text.rfind("SERVER_TRAFFIC_SECRET_0 ", 0) == 0) has_listener = read_hex(secret, listener);
}

RecordKey record_key(const Digest& secret) {
  RecordKey made{};
  const Digest key = expand(secret, "key", 16), nonce = expand(secret, "iv", 12);
  std::copy_n(key.begin(), made.key.size(), made.key.begin());
  std::copy_n(nonce.begin(), made.nonce.size(), made.nonce.begin());
  return made;
}

Digest next_secret(const Digest& secret) { return expand(secret, "traffic upd", 32); }

RecordCipher::RecordCipher(const Digest& secret, Way way) : o_(openssl()), way_(way), ctx_(o_.EVP_CIPHER_CTX_new()) {
  if (ctx_ == nullptr) throw BadInput("OpenSSL has no memory for a connection");
  try {
    use(secret);
  } catch (...) {
    o_.EVP_CIPHER_CTX_free(ctx_);
    throw;
  }
}

RecordCipher::~RecordCipher() { o_.EVP_CIPHER_CTX_free(ctx_); }

void RecordCipher::use(const Digest& secret) {
  const RecordKey made = record_key(secret);
  throw_if<BadInput>(
      o_.EVP_CipherInit_ex(ctx_, o_.EVP_aes_128_gcm(), nullptr, made.key.data(), nullptr, static_cast<int>(way_)) != 1,
      "the OpenSSL of this machine has no AES-128-GCM");
  secret_ = secret;
  nonce_ = made.nonce;
  number_ = bytes_ = 0;
}

void RecordCipher::take_next_key() { use(next_secret(secret_)); }

bool RecordCipher::begin(const uint8_t* header) {
  std::array<uint8_t, 12> nonce = nonce_;
  for (size_t i = 0; i < 8; ++i) nonce[11 - i] ^= static_cast<uint8_t>(number_ >> (8 * i));
  ++number_;
  return o_.EVP_CipherInit_ex(ctx_, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         update(nullptr, header, kRecordHeader);
}

bool RecordCipher::update(uint8_t* out, const uint8_t* from, size_t bytes) {
  int made = 0;
  return bytes == 0 || o_.EVP_CipherUpdate(ctx_, out, &made, from, static_cast<int>(bytes)) == 1;
}

size_t RecordCipher::seal(RecordKind kind, const uint8_t* from, size_t bytes, uint8_t* out) {
  const size_t body = bytes + 1 + kRecordTag;
  const uint8_t last = static_cast<uint8_t>(kind);
  out[0] = static_cast<uint8_t>(RecordKind::data);
  out[1] = out[2] = 3;
  out[3] = static_cast<uint8_t>(body >> 8);
  out[4] = static_cast<uint8_t>(body);
  uint8_t* text = out + kRecordHeader;
  int none = 0;
  const bool done = begin(out) && update(text, from, bytes) && update(text + bytes, &last, 1) &&
                    o_.EVP_CipherFinal_ex(ctx_, text + bytes + 1, &none) == 1 &&
                    o_.EVP_CIPHER_CTX_ctrl(ctx_, kGetTag, kRecordTag, text + bytes + 1) == 1;
  if (!done) throw std::runtime_error("OpenSSL failed to encrypt");  // this error cannot be caused by a peer
  bytes_ += bytes;
  return kRecordHeader + body;
}

bool RecordCipher::open(const uint8_t* record, uint8_t* out, size_t& bytes, RecordKind& kind) {
  const size_t body = static_cast<size_t>(record[3]) << 8 | record[4];
  if (body < 1 + kRecordTag || kRecordHeader + body > kLongest) return false;
  bytes = body - kRecordTag - 1;
  const uint8_t* text = record + kRecordHeader;
  std::array<uint8_t, kRecordTag> tag{};
  std::memcpy(tag.data(), text + bytes + 1, kRecordTag);
  uint8_t last = 0, nothing = 0;
  int none = 0;
  const bool whole = begin(record) && update(out, text, bytes) && update(&last, text + bytes, 1) &&
                     o_.EVP_CIPHER_CTX_ctrl(ctx_, kSetTag, kRecordTag, tag.data()) == 1 &&
                     o_.EVP_CipherFinal_ex(ctx_, &nothing, &none) == 1;
  if (!whole) return false;
  while (last == 0 && bytes > 0) last = out[--bytes];  // skips the padding, which is zeros after the kind
  kind = static_cast<RecordKind>(last);
  return bytes <= kRecord;
}

}  // namespace springtide
