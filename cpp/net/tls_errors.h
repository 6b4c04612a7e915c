// Explains TLS failures: OpenSSL's reasons and alerts of the peer, as the end of a sentence about the peer.
#pragma once

#include <cstdint>
#include <string>

namespace springtide {

bool is_refusal(const std::string& reason);                // the other side has said that it does not want us
std::string explain_tls_error(const std::string& reason);  // as OpenSSL calls it
std::string explain_alert(uint8_t number);                 // of the other side: RFC 8446, section 6

}  // namespace springtide
