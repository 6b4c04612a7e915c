// The slots that a push with identities speaks for, as this server may answer for them.
// In: the push's header and named slots, what the server owns. Out: a mask for Store::push_once.
#pragma once

#include <cstdint>
#include <vector>

#include "server/requests/server_state.h"
#include "wire/wire.h"

namespace springtide {

// A push speaks for the slots it names, or for all that this server had at its epoch. Of the latter the
// server answers for those that it has owned ever since: a slot that came later is not recorded, because the
// sender's keys of it went elsewhere, and keys of a slot that came back meanwhile are refused. Whether a slot
// is the server's at the moment of applying is for the store's gates to say. Empty: all slots.
std::vector<uint8_t> spoken_slots(const FrameHeader& header, const BodyView& body, const Owned& owned);

}  // namespace springtide
