// Tests HMAC-SHA256 against results of Python's hmac, for messages around the block size and for keys up to and above
// it.
#include "base/sha256.h"

#include <cstdio>
#include <string>

#include "testing/check.h"

namespace springtide::sha256_test {

namespace {

std::string hmac(const std::string& key, const std::string& message) {
  const auto bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  std::string hex;
  for (const uint8_t byte : hmac_sha256(bytes(key), bytes(message))) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return hex;
}

}  // namespace

TEST(the_digest_is_the_standard_one) {
  CHECK(hmac("", "") == "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==  // RFC 4231
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string k(200, 'k'), m(500, 'm');
  CHECK(hmac(k.substr(0, 20), m.substr(0, 55)) == "2d9ea34252393e30615c547ec2849c19cc94ac816be6d07fe4f4ef7f7c5fc5bf");
  CHECK(hmac(k.substr(0, 64), m.substr(0, 56)) == "62954b00cd56d4c95c6f80b8099009976316bcffc52eada7829bd724402693a1");
  CHECK(hmac(k.substr(0, 65), m.substr(0, 64)) == "8b059b2d9407087766cb94a6a0bd72fcabcabf26190712bd17e1e24221b2b14a");
  CHECK(hmac(k, m) == "9e45c7032bacac05297abaa3abbe85d07370c9020ede77c7f7a67e035dd95133");
}

}  // namespace springtide::sha256_test
