// Wire format: a fixed little-endian header, then a body whose layout follows from the header's counts. Input
// is untrusted and checked. Spec: docs/design/wire.md.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace springtide {

static_assert(std::endian::native == std::endian::little, "frames are laid out as little-endian memory");

constexpr uint32_t kMagic = 0x57445453;     // "STDW"
constexpr uint16_t kVersion = 6;            // incremented with every change of the format
constexpr uint64_t kHandshakeBytes = 4096;  // maximum body size before the secret is proved

enum class Kind : uint8_t {
  hello = 1,  // handshake.h
  challenge,
  proof,
  welcome,
  window,  // shared memory: the body comes with a descriptor
  declare,
  pull,
  push,
  assign,
  scan,
  stats,
  step,  // bsp: wait at most `clock` ms until every rank's part of `step` has arrived; with kBsp: apply it
  // bsp: starts `generation`; the reply's `step` is the last complete step here. With kBsp: `keys` ranks continue after
  // `step`.
  regroup,
  // handover.h: an image of slot `step`, which stays closed; the reply's `step` is 1 if the server owns the slot
  // already.
  take,
  own_all,  // handover.h: the last parts of slots, or whole slots (slot_batch.h); the target then owns these slots
  last = own_all,
};

enum class Status : uint16_t {
  ok = 0,
  bad_input,   // invalid request; the body is a message, the connection stays open
  non_finite,  // NaN or infinity in a push, nothing applied; a message
  // Refusal: slots of other servers, and their owners; pushes and assignments were applied to all other slots.
  wrong_owner,
  stale_generation,  // the group has returned to a checkpoint since; a message
  step_missing,      // bsp: not every rank's part arrived in time; a message
  refused,           // handshake: wrong version or secret; a message, then the connection ends
  bad_frame,         // malformed; a message, then the connection ends
  internal,          // server error; a message
  busy,              // handshake: too many connections, or too slow a hello; a message, try again
  partly_applied,    // a slot has applied a part of the push's batches, nothing applied there; a message
};

enum Flag : uint8_t {
  kReply = 1,
  kBsp = 2,          // push: a part of step `step` of the whole group
  kUnique = 4,       // push: no key occurs twice
  kKeep = 4,         // assign: first values; existing rows, and slots that have their first values, do not change
  kInWindow = 8,     // the body is in the window at window_offset, floats at the spans
  kNamesSlots = 16,  // push: covers only the slots in its body; without it, all slots of the server at its epoch
  // Reply: the last 8 bytes of the body are server_ns, known only after the rows were sent. kSlotsLeft in this field
  // means that slots moved away meanwhile: ignore the rows and ask again.
  kTimed = 32,
  kSeen = 64,     // push: server_ns is the push count that came with its oldest rows
  kAtRest = 128,  // regroup: no rank is within a step, so a server that had no slots joins at this step
};

struct FrameHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint64_t request = 0;     // chosen by the client, echoed by the reply
  uint64_t body_bytes = 0;  // size of the body, on the socket or in the window
  uint32_t generation = 0;  // bsp: incremented by a return to a checkpoint
  uint32_t epoch = 0;       // of the sender's placement
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  // Push: its step; pull: answer only once this step is applied; pull reply: pushes that the server had applied before
  // it read the rows; scan reply: next slot.
  uint64_t step = 0;
  uint64_t clock = 0;      // push: the age clock; take: the transfer's id; reply: ns spent waiting for a step
  uint64_t server_ns = 0;  // reply: the server's own time in its tables; push: see kSeen
  uint16_t status = 0;
  uint16_t hypers = 0;   // TableHyper[]
  uint16_t spans = 0;    // FloatSpan[]
  uint16_t slots = 0;    // uint16_t[]
  uint32_t batches = 0;  // BatchRange[]
  uint32_t keys = 0;     // Key[], then TableId[]
  uint64_t window_offset = 0;
  uint32_t reserved = 0;
  uint32_t check = 0;  // checksum of all bytes before it
};
static_assert(sizeof(FrameHeader) == 96);

constexpr uint64_t kSlotsLeft = 1ULL << 63;

static_assert(sizeof(BatchRange) == 24);

// A run of floats in the shared window: the rows of the next keys, which fill it exactly.
struct FloatSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Where each section of a body starts, in bytes. Every section is aligned for its type.
struct BodyLayout {
  uint64_t batches, hypers, spans, slots, keys, tables, floats;
};
BodyLayout layout_of(const FrameHeader& header);

// A parsed body. The spans point into the given bytes.
struct BodyView {
  std::span<const BatchRange> batches;
  std::span<const TableHyper> hypers;
  std::span<const FloatSpan> spans;
  std::span<const uint16_t> slots;
  std::span<const Key> keys;
  std::span<const TableId> tables;
  std::span<const float> floats;
};

void seal(FrameHeader& header);  // fills in `check`; must be the last call before sending
// Returns what is wrong with the header, or an empty string. `limit` bounds body_bytes.
std::string header_error(const FrameHeader& header, uint64_t limit);
// Returns an empty string and fills `view` if the body's size matches the header's counts; else returns the error.
// `body` must be aligned to 8 bytes.
std::string parse_body(const FrameHeader& header, std::span<const uint8_t> body, BodyView& view);

// All sections of a body before its keys.
std::vector<uint8_t> encode_prefix(FrameHeader& header, std::span<const BatchRange> batches,
                                   std::span<const TableHyper> hypers, std::span<const FloatSpan> spans,
                                   std::span<const uint16_t> slots);

const char* name_of(Kind kind);

// Body of a wrong_owner reply: slots, their owners and addresses, so that a client retries without asking the master.
constexpr uint16_t kNoOwner = UINT16_MAX;  // the owner is unknown here: ask again soon

struct Refusal {
  std::vector<uint16_t> slots;
  std::vector<uint16_t> owners;               // owner of each slot; kNoOwner if unknown
  std::map<uint16_t, std::string> addresses;  // host:port of owners that the client may not know
};

// Reply that a client gets: WrongOwner with the new owners.
struct Refused : WrongOwner {
  Refused(const std::string& why, Refusal what) : WrongOwner(why), refusal(std::move(what)) {}
  Refusal refusal;
};

std::vector<uint8_t> encode(const Refusal& refusal);
Refusal decode_refusal(std::span<const uint8_t> body);  // PeerLost if the frame is malformed

// Table specs as bytes, the body of a declare frame. Decoding checks every length.
constexpr size_t kMaxTableName = 4096;

std::vector<uint8_t> encode_tables(std::span<const TableSpec> tables);
std::vector<TableSpec> decode_tables(std::span<const uint8_t> bytes);  // BadInput if the entries are malformed

}  // namespace springtide
