// Wire format: a fixed little-endian header, and a body whose layout follows from the counts in the header. All input
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
constexpr uint16_t kVersion = 6;            // increased with every change of the format
constexpr uint64_t kHandshakeBytes = 4096;  // largest body until the peer has proved that it knows the secret

enum class Kind : uint8_t {
  hello = 1,  // handshake.h
  challenge,
  proof,
  welcome,
  window,  // shared memory: the frame comes with a file descriptor
  declare,
  pull,
  push,
  assign,
  scan,
  stats,
  step,  // bsp: wait at most `clock` ms until every rank's part of `step` has arrived; with kBsp: apply the step
  // bsp: starts the generation `generation`. The reply's `step` is the last step that is complete on this server. With
  // kBsp, `keys` ranks continue after `step`.
  regroup,
  // handover.h: an image of slot `step`, which stays closed. The reply's `step` is 1 if the server already owns the
  // slot.
  take,
  own_all,  // handover.h: the last parts of slots, or whole slots (slot_batch.h), which the target then owns
  last = own_all,
};

enum class Status : uint16_t {
  ok = 0,
  bad_input,   // the request is invalid; the body is a message, and the connection stays open
  non_finite,  // NaN or infinity in a push, of which nothing was applied; the body is a message
  // Refusal: slots of other servers, and their owners. The server has applied the push or assignment to all other
  // slots.
  wrong_owner,
  stale_generation,  // the group has returned to a checkpoint after the frame was sent; the body is a message
  step_missing,      // bsp: some rank's part did not arrive in time; the body is a message
  refused,           // handshake: wrong version or secret; the body is a message, and then the connection ends
  bad_frame,         // the frame is malformed; the body is a message, and then the connection ends
  internal,          // an error of the server; the body is a message
  // handshake: too many connections, or the hello came too late; the body is a message, and the client may try again
  busy,
  // a slot has applied a part of the push's batches, so nothing was applied there; the body is a message
  partly_applied,
};

enum Flag : uint8_t {
  kReply = 1,
  kBsp = 2,     // push: this is a part of step `step` of the whole group
  kUnique = 4,  // push: no key occurs twice
  // assign: these are first values, which change neither existing rows nor slots that have their first values
  kKeep = 4,
  kInWindow = 8,  // the body is in the window at window_offset, and the floats are at the spans
  // push: covers only the slots that its body names; without it, all slots that the server has at the frame's epoch
  kNamesSlots = 16,
  // Reply: the last 8 bytes of the body are server_ns, which is only known after the rows were sent. kSlotsLeft in this
  // field means that slots moved away meanwhile, so that the client must ignore the rows and ask again.
  kTimed = 32,
  // push: server_ns is the number of pushes that the server had applied when it read the oldest rows of this push
  kSeen = 64,
  kAtRest = 128,  // regroup: no rank is in the middle of a step, so a server that had no slots joins at this step
};

struct FrameHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint64_t request = 0;     // chosen by the client; the reply has the same number
  uint64_t body_bytes = 0;  // size of the body, on the socket or in the window
  uint32_t generation = 0;  // bsp: increased when the group returns to a checkpoint
  uint32_t epoch = 0;       // epoch of the sender's placement
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  // Push: its step; pull: answer only when this step is applied; reply to a pull: how many pushes the server had
  // applied before it read the rows; reply to a scan: the next slot.
  uint64_t step = 0;
  uint64_t clock = 0;      // push: the age clock; take: id of the transfer; reply: ns spent waiting for a step
  uint64_t server_ns = 0;  // reply: the time that the server spent in its tables; push: see kSeen
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

// The offset of each section in a body, in bytes. Every section is aligned for its type.
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

void seal(FrameHeader& header);  // sets `check`; call it last, before sending
// Returns what is wrong with the header; empty if nothing is. `limit` bounds body_bytes.
std::string header_error(const FrameHeader& header, uint64_t limit);
// If the size of the body matches the counts in the header, fills `view` and returns an empty string. Otherwise returns
// the error. `body` must be aligned to 8 bytes.
std::string parse_body(const FrameHeader& header, std::span<const uint8_t> body, BodyView& view);

// Returns all sections of a body that come before its keys.
std::vector<uint8_t> encode_prefix(FrameHeader& header, std::span<const BatchRange> batches,
                                   std::span<const TableHyper> hypers, std::span<const FloatSpan> spans,
                                   std::span<const uint16_t> slots);

const char* name_of(Kind kind);

// Body of a wrong_owner reply: slots, their owners and addresses. A client can then retry without asking the master.
constexpr uint16_t kNoOwner = UINT16_MAX;  // the owner is unknown here, so ask again soon

struct Refusal {
  std::vector<uint16_t> slots;
  std::vector<uint16_t> owners;               // owner of each slot; kNoOwner if unknown
  std::map<uint16_t, std::string> addresses;  // host:port of owners that the client may not know
};

// The error that a client gets: WrongOwner with the new owners.
struct Refused : WrongOwner {
  Refused(const std::string& why, Refusal what) : WrongOwner(why), refusal(std::move(what)) {}
  Refusal refusal;
};

std::vector<uint8_t> encode(const Refusal& refusal);
Refusal decode_refusal(std::span<const uint8_t> body);  // throws PeerLost if the frame is malformed

// Table specs as bytes, the body of a declare frame. Decoding checks every length.
constexpr size_t kMaxTableName = 4096;

std::vector<uint8_t> encode_tables(std::span<const TableSpec> tables);
std::vector<TableSpec> decode_tables(std::span<const uint8_t> bytes);  // throws BadInput if the entries are malformed

}  // namespace springtide
