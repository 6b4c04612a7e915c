// SHA-256 (FIPS 180-4) and HMAC (RFC 2104). With these, both ends of a connection prove that they know the job's
// secret.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace springtide {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::span<const uint8_t> message);
Digest hmac_sha256(std::span<const uint8_t> key, std::span<const uint8_t> message);
bool same_digest(const Digest& a, const Digest& b);  // constant time

}  // namespace springtide
