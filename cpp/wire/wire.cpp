#include "wire/wire.h"

#include <array>
#include <cstring>

#include "base/byte_stream.h"
#include "base/hash.h"

namespace springtide {

namespace {

// The list of fields, used for encoding and decoding.
template <class Walker, class Spec>
void walk(Walker& w, Spec& spec) {
  w.field(spec.id), w.template counted<uint32_t>(spec.name), w.field(spec.dim), w.field(spec.dtype);
  w.field(spec.init.kind), w.field(spec.init.a), w.field(spec.init.b);
  auto& o = spec.optim;
  w.field(o.kind), w.field(o.momentum), w.field(o.dampening), w.field(o.nesterov), w.field(o.beta1), w.field(o.beta2);
  w.field(o.eps_outside), w.field(o.decoupled_decay), w.field(o.eps), w.field(o.alpha), w.field(o.ftrl_beta);
  w.field(o.l1), w.field(o.l2), w.field(o.initial_accumulator);
  w.field(spec.min_count), w.field(spec.ttl), w.field(spec.capacity_rows);
}

void check(const TableSpec& spec) {
  if (spec.name.size() > kMaxTableName) throw BadInput("a table's name is longer than 4096 bytes");
  throw_if<BadInput>(spec.dtype > DType::bf16 || spec.init.kind > InitKind::xavier || spec.optim.kind > OptimKind::ftrl,
                     "table '", spec.name, "' is declared with a dtype, init or optimizer that does not exist");
}

constexpr uint64_t round_up(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// A checksum that makes it unlikely that bytes of a torn or shifted stream pass as a header.
uint32_t check_of(const FrameHeader& header) {
  constexpr size_t words = (sizeof(FrameHeader) - sizeof header.check) / 4;
  std::array<uint32_t, words> word;
  std::memcpy(word.data(), &header, sizeof word);
  uint64_t sum = kVersion;
  for (const uint32_t w : word) sum = mix64(sum + w + 0x9e3779b97f4a7c15ULL);
  return static_cast<uint32_t>(sum ^ (sum >> 32));
}

template <class T>
std::span<const T> section(std::span<const uint8_t> body, uint64_t at, uint64_t count) {
  return {reinterpret_cast<const T*>(body.data() + at), count};
}

template <class T>
void put(std::vector<uint8_t>& out, uint64_t at, std::span<const T> items) {
  if (!items.empty()) std::memcpy(out.data() + at, items.data(), items.size_bytes());
}

}  // namespace

BodyLayout layout_of(const FrameHeader& header) {
  // Counts are at most 32 bits wide, so these 64-bit sums cannot overflow.
  BodyLayout at{};
  at.hypers = at.batches + header.batches * uint64_t{sizeof(BatchRange)};
  at.spans = at.hypers + header.hypers * uint64_t{sizeof(TableHyper)};
  at.slots = at.spans + header.spans * uint64_t{sizeof(FloatSpan)};
  at.keys = round_up(at.slots + header.slots * uint64_t{sizeof(uint16_t)});
  at.tables = at.keys + header.keys * uint64_t{sizeof(Key)};
  at.floats = round_up(at.tables + header.keys * uint64_t{sizeof(TableId)});
  return at;
}

void seal(FrameHeader& header) { header.check = check_of(header); }

std::string header_error(const FrameHeader& header, uint64_t limit) {
  if (header.magic != kMagic) return "this is not a frame of Springtide's wire protocol";
  if (header.version != kVersion) {
    return concat("a frame of protocol version ", header.version, ", this process speaks version ", kVersion,
                  ": run versions of Springtide with the same protocol in all roles of a job");
  }
  if (header.check != check_of(header)) return "the frame's header is damaged: its check does not match";
  if (header.kind < static_cast<uint8_t>(Kind::hello) || header.kind > static_cast<uint8_t>(Kind::last)) {
    return "unknown kind of frame " + std::to_string(header.kind);
  }
  if (header.body_bytes > limit) {
    return "a frame of " + std::to_string(header.body_bytes) + " bytes is over the limit of " + std::to_string(limit);
  }
  return {};
}

std::string parse_body(const FrameHeader& header, std::span<const uint8_t> body, BodyView& view) {
  const BodyLayout at = layout_of(header);
  if (at.floats > body.size() || (body.size() - at.floats) % sizeof(float) != 0) {
    return concat("a body of ", body.size(), " bytes does not fit ", header.keys, " keys, ", header.batches,
                  " batches and ", header.hypers, " tables");
  }
  view.batches = section<BatchRange>(body, at.batches, header.batches);
  view.hypers = section<TableHyper>(body, at.hypers, header.hypers);
  view.spans = section<FloatSpan>(body, at.spans, header.spans);
  view.slots = section<uint16_t>(body, at.slots, header.slots);
  view.keys = section<Key>(body, at.keys, header.keys);
  view.tables = section<TableId>(body, at.tables, header.keys);
  view.floats = section<float>(body, at.floats, (body.size() - at.floats) / sizeof(float));
  return {};
}

std::vector<uint8_t> encode_prefix(FrameHeader& header, std::span<const BatchRange> batches,
                                   std::span<const TableHyper> hypers, std::span<const FloatSpan> spans,
                                   std::span<const uint16_t> slots) {
  constexpr size_t most = UINT16_MAX;
  throw_if<BadInput>(hypers.size() > most || spans.size() > most || slots.size() > most || batches.size() > UINT32_MAX,
                     "one request holds at most 65535 tables and slots; split it");
  header.batches = static_cast<uint32_t>(batches.size());
  header.hypers = static_cast<uint16_t>(hypers.size());
  header.spans = static_cast<uint16_t>(spans.size());
  header.slots = static_cast<uint16_t>(slots.size());
  const BodyLayout at = layout_of(header);
  std::vector<uint8_t> out(at.keys, 0);
  put(out, at.batches, batches);
  put(out, at.hypers, hypers);
  put(out, at.spans, spans);
  put(out, at.slots, slots);
  return out;
}

const char* name_of(Kind kind) {
  constexpr std::array names = {
      "nothing",    "hello", "challenge",           "proof", "welcome",    "window", "declaration",   "pull", "push",
      "assignment", "scan",  "request for figures", "step",  "regrouping", "take",   "batch of slots"};
  const auto at = static_cast<size_t>(kind);
  return at < names.size() ? names[at] : "unknown request";
}

std::vector<uint8_t> encode(const Refusal& refusal) {
  std::vector<uint8_t> out;
  ByteWriter w{out};
  w.field(static_cast<uint32_t>(refusal.slots.size()));
  w.field(static_cast<uint32_t>(refusal.addresses.size()));
  w.put(refusal.slots.data(), refusal.slots.size() * sizeof(uint16_t));
  w.put(refusal.owners.data(), refusal.owners.size() * sizeof(uint16_t));
  for (const auto& [server, address] : refusal.addresses) {
    w.field(server);
    w.counted<uint16_t>(address);
  }
  return out;
}

Refusal decode_refusal(std::span<const uint8_t> body) {
  Refusal refusal;
  ByteReader<PeerLost> r{body, "a wrong_owner reply is malformed"};
  const auto slots = r.get<uint32_t>(), addresses = r.get<uint32_t>();
  r.elements(refusal.slots, slots);
  r.elements(refusal.owners, slots);
  for (uint32_t i = 0; i < addresses; ++i) r.counted<uint16_t>(refusal.addresses[r.get<uint16_t>()]);
  r.finish();
  return refusal;
}

std::vector<uint8_t> encode_tables(std::span<const TableSpec> tables) {
  std::vector<uint8_t> out;
  ByteWriter w{out};
  w.field(static_cast<uint32_t>(tables.size()));
  for (const TableSpec& spec : tables) walk(w, spec);
  return out;
}

std::vector<TableSpec> decode_tables(std::span<const uint8_t> bytes) {
  ByteReader<BadInput> r{bytes, "a declaration of tables ends in the middle of a field, or has bytes after its end"};
  const auto count = r.get<uint32_t>();
  std::vector<TableSpec> tables;
  // this grows with the entries that exist, not with the count that the frame claims
  for (uint32_t i = 0; i < count; ++i) {
    walk(r, tables.emplace_back());
    check(tables.back());
  }
  r.finish();
  return tables;
}

}  // namespace springtide
