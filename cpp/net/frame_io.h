// Sends and receives whole small frames: handshakes, declarations, refusals. row_runs.h and peer.h send rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/socket.h"
#include "wire/wire.h"

namespace springtide {

// Seals the header, sets body_bytes, and sends header and body.
Io send_frame(Line line, FrameHeader header, std::span<const uint8_t> body);
// Sends an error reply to `request`.
Io send_failure(Line line, const FrameHeader& request, Status status, const std::string& why);
FrameHeader reply_to(const FrameHeader& request);

// Receives header and body. The frame is valid if the result is Io::ok and `why` is empty. Otherwise `why` has the
// error.
Io receive_frame(Line line, FrameHeader& header, std::vector<uint8_t>& body, uint64_t limit, std::string& why);

std::span<const uint8_t> bytes_of(const std::string& text);
std::string text_of(std::span<const uint8_t> bytes);
std::string describe(Io io, Line line = -1);  // describes the error of that line, or of errno

}  // namespace springtide
