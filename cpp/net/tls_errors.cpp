#include "net/tls_errors.h"

namespace springtide {
namespace {

std::string alert_name(uint8_t number) {  // of those that are about certificates
  switch (number) {
    case 42:
      return "bad certificate";
    case 43:
      return "unsupported certificate";
    case 45:
      return "certificate expired";
    case 46:
      return "certificate unknown";
    case 48:
      return "unknown ca";
    case 51:
      return "decrypt error";
    case 116:
      return "certificate required";
    default:
      return "number " + std::to_string(number);
  }
}

}  // namespace

bool is_refusal(const std::string& reason) {  // as OpenSSL calls alerts
  return reason.find("alert") != std::string::npos;
}

std::string explain_tls_error(const std::string& reason) {
  if (reason == "wrong version number" || reason == "http request" || reason == "unsupported protocol" ||
      reason == "packet length too long") {
    return "it does not speak TLS 1.3: is SPRINGTIDE_TLS set on both sides? (" + reason + ")";
  }
  if (reason == "peer did not return a certificate") return "it showed no certificate";
  if (is_refusal(reason)) return "it did not accept this process's certificate, or broke off (" + reason + ")";
  return "TLS failed: " + reason;
}

std::string explain_alert(uint8_t number) { return explain_tls_error("alert: " + alert_name(number)); }

}  // namespace springtide
