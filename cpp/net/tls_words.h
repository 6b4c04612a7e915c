// What TLS says when it fails, in words that tell a person what to do. In: OpenSSL's reasons, alerts of the
// other side. Out: the end of a sentence about that side.
#pragma once

#include <cstdint>
#include <string>

namespace springtide {

bool is_refusal(const std::string& reason);       // the other side has said that it does not want us
std::string in_words(const std::string& reason);  // as OpenSSL calls it
std::string alert_in_words(uint8_t number);       // of the other side: RFC 8446, section 6

}  // namespace springtide
