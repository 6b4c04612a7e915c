// Pulls: rows are looked up and sent piece by piece, or written to the client's window. A part of
// RequestHandler.
#include <algorithm>

#include "net/frame_io.h"
#include "server/requests/request_handler.h"

namespace springtide {
namespace {

// Of a reply to a pull so much is in memory at once, and rows are sent by so many bytes as soon as they and
// all before them are there: the peer copies some while others are looked up, and they are still in the cache
// when the kernel copies them.
constexpr size_t kPieceBytes = 2 << 20, kSendBytes = 128 << 10;

}  // namespace

// A reply under way.
struct RowReply {
  explicit RowReply(const FrameHeader& header) : head(header), out{{&head, sizeof head}} {}
  RowReply(const RowReply&) = delete;
  RowReply& operator=(const RowReply&) = delete;
  void add(const float* rows, size_t from, size_t to) {  // bytes of it
    if (from != to) out.push_back({const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(rows)) + from, to - from});
  }

  FrameHeader head;
  std::vector<iovec> out;      // not sent yet
  std::vector<uint16_t> left;  // slots that moved away after they were looked at
  uint64_t spent = 0;          // ns in the tables
};

bool RequestHandler::pull(const FrameHeader& header, const BodyView& body) {
  const std::vector<Run> runs = reply_runs(header, body, window_, dims_);
  uint64_t waited = 0;
  if (header.step != 0) {
    const uint64_t start = now_ns();
    state_.steps.wait(header.step, state_.options.step_wait_s);
    waited = now_ns() - start;
    state_.count.step_wait_ns += waited;
  }
  const auto owned = state_.ownership();
  const auto foreign = foreign_slots(body, *owned, state_.store.slots(), keep_);
  state_.count.wrong_owner_keys += static_cast<uint64_t>(std::count(keep_.begin(), keep_.end(), 0));
  if (!foreign.empty()) return refuse_slots(header, foreign, 0);
  ++state_.count.pulls;
  state_.count.pulled_keys += body.keys.size();
  return runs.empty() ? stream(header, body, waited) : fill_window(header, body, runs, waited);
}

bool RequestHandler::stream(const FrameHeader& header, const BodyView& body, uint64_t waited_ns) {
  RowReply reply(reply_to(header));
  reply.head.flags |= kTimed;
  reply.head.clock = waited_ns;
  reply.head.step = state_.staleness.applied();
  uint32_t common = 0;
  reply.head.body_bytes = sizeof(float) * dims_.floats(body.tables, common) + sizeof reply.spent;
  seal(reply.head);
  const bool alone = state_.serving == 1;  // beside other requests helpers would only take turns with them
  const size_t total = body.keys.size();
  for (size_t at = 0; at < total;) {
    size_t bytes = 0;
    const size_t end = piece_end(body.tables, at, common, bytes);
    if (rows_.size() * sizeof(float) < bytes) rows_.resize(bytes / sizeof(float));
    if (!look_up(body, at, end, alone, common, reply)) return false;
    if (!reply.left.empty() && !mid_reply_) return refuse_slots(header, reply.left, reply.spent);
    at = end;
  }
  mid_reply_ = false;
  state_.count.lookup_ns += reply.spent;
  if (!reply.left.empty()) reply.spent |= kSlotsLeft;
  reply.out.push_back({&reply.spent, sizeof reply.spent});
  state_.count.bytes_out += sizeof reply.head + reply.head.body_bytes;
  return send_all(line_, reply.out) == Io::ok;
}

// One piece of the reply, sent as its rows come; what is left at the end goes with the trailer.
bool RequestHandler::look_up(const BodyView& body, size_t first, size_t end, bool helped, uint32_t common,
                             RowReply& reply) {
  const auto tables = body.tables.subspan(first, end - first);
  size_t told = 0, at = 0, sent = 0;  // keys; bytes there, bytes sent
  bool gone = false;
  uint64_t since = now_ns();
  const bool last = end == body.keys.size();
  state_.store.pull(tables, body.keys.subspan(first, end - first), rows_.data(), reply.left, helped, [&](size_t keys) {
    at += sizeof(float) * (common != 0 ? common * (keys - told) : dims_.floats(tables.subspan(told, keys - told)));
    told = keys;
    const bool whole = keys == tables.size();
    if (gone || (!reply.left.empty() && !mid_reply_)) return;
    if (whole ? last : at - sent < kSendBytes) return;
    reply.spent += now_ns() - since;
    reply.add(rows_.data(), sent, at);
    sent = at;
    mid_reply_ = true;
    gone = send_all(line_, reply.out) != Io::ok;
    since = now_ns();
  });
  reply.spent += now_ns() - since;
  reply.add(rows_.data(), sent, at);
  return !gone;
}

size_t RequestHandler::piece_end(std::span<const TableId> tables, size_t at, uint32_t common, size_t& bytes) {
  const size_t total = tables.size();
  if (common != 0) {  // the usual case, without a look at every key
    const size_t row = sizeof(float) * common;
    const size_t end = std::min(total, at + (kPieceBytes + row - 1) / row);
    bytes = (end - at) * row;
    return end;
  }
  size_t end = at;
  while (end < total && bytes < kPieceBytes) bytes += sizeof(float) * dims_.of(tables[end++]);
  return end;
}

bool RequestHandler::fill_window(const FrameHeader& header, const BodyView& body, std::span<const Run> runs,
                                 uint64_t waited_ns) {
  const uint64_t start = now_ns();
  const uint64_t applied = state_.staleness.applied();
  uint64_t bytes = 0;
  std::vector<uint16_t> left;
  for (const Run& run : runs) {
    const auto tables = body.tables.subspan(run.first, run.keys);
    state_.store.pull(tables, body.keys.subspan(run.first, run.keys), run.floats, &left);
  }
  if (!left.empty()) return refuse_slots(header, left, now_ns() - start);
  for (const FloatSpan& span : body.spans) bytes += span.bytes;
  FrameHeader answer = reply_to(header);
  answer.flags |= kInWindow;
  answer.clock = waited_ns;
  answer.step = applied;
  answer.server_ns = now_ns() - start;
  state_.count.lookup_ns += answer.server_ns;
  state_.count.bytes_out += bytes;
  return reply(answer, {});
}

}  // namespace springtide
