#include "wire/refusal.h"

#include <cstring>

#include "base/types.h"

namespace springtide {
namespace {

template <class T>
void put(std::vector<uint8_t>& out, const T* from, size_t count) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

template <class T>
void take(std::span<const uint8_t>& rest, T* to, size_t count) {
  if (rest.size() / sizeof(T) < count) throw PeerLost("a wrong_owner reply is malformed");
  if (count != 0) std::memcpy(to, rest.data(), count * sizeof(T));
  rest = rest.subspan(count * sizeof(T));
}

}  // namespace

std::vector<uint8_t> encode(const Refusal& refusal) {
  std::vector<uint8_t> out;
  const auto slots = static_cast<uint32_t>(refusal.slots.size());
  const auto addresses = static_cast<uint32_t>(refusal.addresses.size());
  put(out, &slots, 1);
  put(out, &addresses, 1);
  put(out, refusal.slots.data(), slots);
  put(out, refusal.owners.data(), slots);
  for (const auto& [server, address] : refusal.addresses) {
    const auto length = static_cast<uint16_t>(address.size());
    put(out, &server, 1);
    put(out, &length, 1);
    put(out, address.data(), length);
  }
  return out;
}

Refusal decode_refusal(std::span<const uint8_t> body) {
  Refusal refusal;
  uint32_t slots = 0, addresses = 0;
  take(body, &slots, 1);
  take(body, &addresses, 1);
  if (slots > body.size()) throw PeerLost("a wrong_owner reply is malformed");
  refusal.slots.resize(slots);
  refusal.owners.resize(slots);
  take(body, refusal.slots.data(), slots);
  take(body, refusal.owners.data(), slots);
  for (uint32_t i = 0; i < addresses; ++i) {
    uint16_t server = 0, length = 0;
    take(body, &server, 1);
    take(body, &length, 1);
    std::string address(length, ' ');
    take(body, address.data(), length);
    refusal.addresses[server] = std::move(address);
  }
  if (!body.empty()) throw PeerLost("a wrong_owner reply is malformed");
  return refusal;
}

}  // namespace springtide
