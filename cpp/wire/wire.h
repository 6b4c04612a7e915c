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
constexpr uint16_t kVersion = 6;            // raised with every change of the format
constexpr uint64_t kHandshakeBytes = 4096;  // the largest body before the secret is proved

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
  step,     // bsp: wait until every rank's part of `step` is here, `clock` ms at most; with kBsp: apply it
  regroup,  // bsp: from now on `generation`; the reply's step: complete here. With kBsp: a group of `keys`
            // ranks goes on after `step`
  take,     // handover.h: an image of slot `step`, which stays closed; reply: `step` 1 when it is the server's
            // already
  own_all,  // handover.h: last parts or whole slots, many at once (slot_batch.h), which
            // are the server's from now on
  last = own_all,
};

enum class Status : uint16_t {
  ok = 0,
  bad_input,         // invalid request; the body is a message, the connection stays open
  non_finite,        // NaN or infinity in a push, nothing applied; a sentence
  wrong_owner,       // Refusal: slots that are not the server's, and whose they are; pushes and assignments
                     // were applied to the others
  stale_generation,  // the group has gone back to a checkpoint since; a sentence
  step_missing,      // bsp: not every rank's part came in time; a sentence
  refused,           // handshake: version, secret, too many connections; a sentence, then the connection ends
  bad_frame,         // malformed; a message, then the connection ends
  internal,          // server error; a message
  busy,              // handshake: not now (too many connections, too slow a hello); a sentence, try again
  partly_applied,    // a push whose batches some slot has in part, nothing applied there; a sentence
};

enum Flag : uint8_t {
  kReply = 1,
  kBsp = 2,          // push: a part of step `step` of the whole group
  kUnique = 4,       // push: no key twice
  kKeep = 4,         // assign: first values. Rows that are there stay, slots that have had theirs skip them
  kInWindow = 8,     // keys, tables and the rest lie at window_offset; floats where the spans say
  kNamesSlots = 16,  // push: speaks only for the slots in its body, else for all this server has at its epoch
  kTimed = 32,       // reply: the last 8 bytes of the body are server_ns, known only after the rows were sent;
                     // kSlotsLeft in it: slots moved away meanwhile, the rows mean nothing, ask again
  kSeen = 64,        // push: server_ns is the count that came with the oldest rows it was computed from
  kAtRest = 128,     // regroup: nobody has a step in hand, so a server that had no slots before joins at this step
};

struct FrameHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint64_t request = 0;     // chosen by the client, echoed by the reply
  uint64_t body_bytes = 0;  // what follows, on the socket or in the window
  uint32_t generation = 0;  // bsp: raised by a return to a checkpoint
  uint32_t epoch = 0;       // of the sender's placement
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t step = 0;       // push: its step; pull: answer only once this step is applied, its reply: pushes that
                           // the server had applied before the rows were read; scan reply: next slot
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
  uint32_t check = 0;  // of all bytes before it
};
static_assert(sizeof(FrameHeader) == 96);

constexpr uint64_t kSlotsLeft = 1ULL << 63;

static_assert(sizeof(BatchRange) == 24);

// A run of floats in the shared window: the rows of the next keys, as many as fit exactly.
struct FloatSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Where each section of a body starts, in bytes. Every section is aligned for its type.
struct BodyLayout {
  uint64_t batches, hypers, spans, slots, keys, tables, floats;
};
BodyLayout layout_of(const FrameHeader& header);

// A body taken apart. The spans point into the bytes that were given.
struct BodyView {
  std::span<const BatchRange> batches;
  std::span<const TableHyper> hypers;
  std::span<const FloatSpan> spans;
  std::span<const uint16_t> slots;
  std::span<const Key> keys;
  std::span<const TableId> tables;
  std::span<const float> floats;
};

void seal(FrameHeader& header);  // fills in `check`; call it last before sending
// Returns what is wrong with the header, or an empty string. `limit` bounds body_bytes.
std::string header_error(const FrameHeader& header, uint64_t limit);
// Empty, and `view` filled, when the body's size is exactly what the header's counts ask for. `body` is aligned to 8.
std::string parse_body(const FrameHeader& header, std::span<const uint8_t> body, BodyView& view);

// All sections of a body before its keys.
std::vector<uint8_t> encode_prefix(FrameHeader& header, std::span<const BatchRange> batches,
                                   std::span<const TableHyper> hypers, std::span<const FloatSpan> spans,
                                   std::span<const uint16_t> slots);

const char* name_of(Kind kind);

// Body of a wrong_owner reply: slots, their owners and addresses, so that a client retries without asking the master.
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

// Table specs as bytes, the body of a declare frame. Decoding checks every length.
constexpr size_t kMaxTableName = 4096;

std::vector<uint8_t> encode_tables(std::span<const TableSpec> tables);
std::vector<TableSpec> decode_tables(std::span<const uint8_t> bytes);  // BadInput when they are anything else

}  // namespace springtide
