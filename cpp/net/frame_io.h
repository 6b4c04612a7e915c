// Whole small frames on a socket: handshakes, declarations, refusals. Rows take their own way (row_runs.h, peer.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/socket.h"
#include "wire/wire.h"

namespace springtide {

// Seals the header, sets body_bytes, sends both.
Io send_frame(Line line, FrameHeader header, std::span<const uint8_t> body);
// The reply to `request` that says what is wrong with it.
Io send_failure(Line line, const FrameHeader& request, Status status, const std::string& why);
FrameHeader reply_to(const FrameHeader& request);

// Header and body; `why` says what is wrong unless Io::ok comes back and it is empty.
Io receive_frame(Line line, FrameHeader& header, std::vector<uint8_t>& body, uint64_t limit, std::string& why);

std::span<const uint8_t> bytes_of(const std::string& text);
std::string text_of(std::span<const uint8_t> bytes);
std::string describe(Io io, Line line = -1);  // why it failed: of that line, or by errno

}  // namespace springtide
