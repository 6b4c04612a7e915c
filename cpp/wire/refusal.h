// The body of a wrong_owner reply: slots that the server does not own, their owners and addresses, so that a
// client can retry without asking the master.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace springtide {

constexpr uint16_t kNoOwner = UINT16_MAX;  // the owner is not known here: ask again soon

struct Refusal {
  std::vector<uint16_t> slots;
  std::vector<uint16_t> owners;               // of each; kNoOwner where unknown
  std::map<uint16_t, std::string> addresses;  // host:port, of owners that the client may never have heard of
};

// What a client gets: WrongOwner, and where to go instead.
struct Refused : WrongOwner {
  Refused(const std::string& why, Refusal what) : WrongOwner(why), refusal(std::move(what)) {}
  Refusal refusal;
};

std::vector<uint8_t> encode(const Refusal& refusal);
Refusal decode_refusal(std::span<const uint8_t> body);  // PeerLost when it is none

}  // namespace springtide
