#include "server/requests/request_handler.h"

#include <algorithm>
#include <cstring>

#include "base/byte_stream.h"
#include "base/hash.h"
#include "net/frame_io.h"

namespace springtide {

namespace {

// A reply to a pull is built in pieces of kPieceBytes. The pieces are sent in units of kSendBytes, while more rows are
// looked up. Meanwhile, the peer copies earlier pieces, and the kernel copies rows that are still in the CPU cache.
constexpr size_t kPieceBytes = 2 << 20, kSendBytes = 128 << 10;

constexpr size_t kScanBytes = 8 << 20;  // a reply to a scan ends after the slot with which it exceeds this size

// Counts the request as being served during the lifetime of this object.
struct Serving : NoCopy {
  explicit Serving(std::atomic<uint32_t>& n) : count(n) { ++count; }
  ~Serving() { --count; }
  std::atomic<uint32_t>& count;
};

// The frame belongs to a group that was re-formed after the frame was sent.
GroupChanged group_over(uint32_t generation, uint32_t now) {
  return GroupChanged("generation ", generation, " is over, the group is at ", now, "; join again");
}

}  // namespace

bool RequestHandler::handle(const FrameHeader& header, std::span<const uint8_t> body) {
  state_.count.bytes_in += sizeof header + body.size();
  const Serving serving(state_.serving);
  try {
    return dispatch(header, body);
  } catch (const NonFinite& e) {
    return fail(header, Status::non_finite, e.what());
  } catch (const PartlyApplied& e) {
    return fail(header, Status::partly_applied, e.what());
  } catch (const BadInput& e) {
    return fail(header, Status::bad_input, e.what());
  } catch (const StepMissing& e) {
    return fail(header, Status::step_missing, e.what());
  } catch (const GroupChanged& e) {
    return fail(header, Status::stale_generation, e.what());
  } catch (const std::exception& e) {
    return fail(header, Status::internal, std::string(name_of(static_cast<Kind>(header.kind))) + ": " + e.what());
  }
}

bool RequestHandler::dispatch(const FrameHeader& header, std::span<const uint8_t> body) {
  if (header.generation < state_.generation) throw group_over(header.generation, state_.generation);
  BodyView view;
  const auto kind = static_cast<Kind>(header.kind);
  if (kind == Kind::pull || kind == Kind::push || kind == Kind::assign) {
    state_.request_pause.wait();
    if (const std::string why = parse_body(header, body, view); !why.empty()) throw BadInput(why);
  }
  switch (kind) {
    case Kind::pull:
      return pull(header, view);
    case Kind::push:
      return push(header, view);
    case Kind::assign:
      return assign(header, view);
    case Kind::declare:
      return declare(header, body);
    case Kind::scan:
      return scan(header, body);
    case Kind::stats:
      return stats(header);
    case Kind::step:
      return step(header);
    case Kind::regroup:
      return regroup(header);
    case Kind::take:
      return take(header, body);
    case Kind::own_all:
      return own_all(header, body);
    default:
      ++state_.count.bad_frames;
      fail(header, Status::bad_frame, std::string("a ") + name_of(kind) + " has no place after the handshake");
      return false;
  }
}

void RequestHandler::check_push(const FrameHeader& header, const BodyView& body) {
  std::vector<uint8_t> named(UINT16_MAX + 1, 0);
  for (const TableHyper& record : body.hypers) named[state_.store.spec(record.table).id] = 1;
  for (const TableId table : body.tables) {
    if (is_count(table)) throw BadInput("update counts of rows cannot be pushed, only pulled");
    if (is_image(table)) {
      if ((header.flags & kBsp) == 0) throw BadInput("images of rows are pushed with a step of a bsp group");
    } else if (named[table] == 0) {
      throw BadInput("the push holds keys of table '", state_.store.spec(table).name, "' but no learning rate for it");
    }
  }
  const uint32_t slots = state_.store.slots();
  std::vector<uint8_t> covered(slots, (header.flags & kNamesSlots) != 0 ? 0 : 1);
  for (const uint16_t slot : body.slots) {
    if (slot >= slots) throw BadInput("slot ", slot, " of ", slots);
    covered[slot] = 1;
  }
  if ((header.flags & kNamesSlots) == 0) return;
  for (size_t i = 0; i < body.keys.size(); ++i) {
    if (covered[slot_of(hash_key(body.tables[i], body.keys[i]), slots)] == 0) {
      throw BadInput("the push holds key ", body.keys[i], " of a slot that it does not cover");
    }
  }
}

bool RequestHandler::push(const FrameHeader& header, const BodyView& body) {
  const std::vector<Run> runs = runs_of(header, body, window_, dims_);
  check_push(header, body);
  check_finite(body, runs, dims_, state_.store);
  const auto owned = state_.ownership();
  if (!body.batches.empty() && (header.flags & kBsp) == 0) return push_once(header, body, runs, *owned);
  auto foreign = foreign_slots(body, *owned, state_.store.slots(), keep_);
  state_.count.wrong_owner_keys += static_cast<uint64_t>(std::count(keep_.begin(), keep_.end(), 0));
  const uint64_t spent = apply(header, body, runs, keep_, foreign);
  note_push(header, body, body.keys.size(), spent);
  if (!foreign.empty()) return refuse_slots(header, foreign, spent);
  return reply_done(header, spent);
}

bool RequestHandler::push_once(const FrameHeader& header, const BodyView& body, std::span<const Run> runs,
                               const SlotOwnership& owned) {
  const uint64_t start = now_ns();
  const std::vector<uint8_t> covered = covered_slots(header, body, owned);
  std::vector<RowRun> rows;
  for (const Run& run : runs) rows.push_back({run.keys, run.floats});
  const OnceStats stats = state_.store.push_once({body.tables, body.keys, rows}, body.hypers, header.clock,
                                                 (header.flags & kUnique) != 0, {body.batches, covered});
  const uint64_t spent = now_ns() - start;
  state_.count.repeated_keys += stats.had_keys;
  state_.count.wrong_owner_keys += stats.foreign_keys;
  state_.count.created += stats.created;
  state_.count.evicted += stats.evicted;
  note_push(header, body, body.keys.size() - stats.had_keys - stats.foreign_keys, spent);
  if (!stats.torn.empty()) throw PartlyApplied(describe_torn(state_.store, body.batches, stats.torn));
  if (!stats.foreign.empty()) return refuse_slots(header, stats.foreign, spent);
  return reply_done(header, spent);
}

void RequestHandler::note_push(const FrameHeader& header, const BodyView& body, uint64_t applied, uint64_t spent_ns) {
  ++state_.count.pushes;
  state_.count.pushed_keys += body.keys.size();
  state_.count.update_ns += spent_ns;
  for (const FloatSpan& span : body.spans) state_.count.bytes_in += span.bytes;
  // Pushes of a bsp group are applied together with their step, and a push that changes no row makes no values stale.
  if (applied == 0 || (header.flags & kBsp) != 0) return;
  if ((header.flags & kSeen) != 0) {
    state_.staleness.push_applied(header.server_ns);
  } else {
    state_.staleness.push_applied();
  }
}

uint64_t RequestHandler::apply(const FrameHeader& header, const BodyView& body, std::span<const Run> runs,
                               std::span<const uint8_t> keep, std::vector<uint16_t>& refused) {
  const bool unique = (header.flags & kUnique) != 0;
  if ((header.flags & kBsp) != 0) {
    StepPart part = gathered(body, runs, keep, dims_);
    part.hyper.assign(body.hypers.begin(), body.hypers.end());
    part.clock = header.clock;
    part.unique = unique;
    if (!state_.steps.add(header.step, header.rank, header.generation, std::move(part))) {
      throw group_over(header.generation, state_.generation);
    }
    return 0;
  }
  const auto count = [&](const PushStats& stats) {
    state_.count.created += stats.created;
    state_.count.evicted += stats.evicted;
  };
  const uint64_t start = now_ns();
  if (keep.empty() && (unique || runs.size() <= 1)) {
    for (const Run& run : runs) {
      count(state_.store.push(body.tables.subspan(run.first, run.keys), body.keys.subspan(run.first, run.keys),
                              run.floats, body.hypers, header.clock, unique, &refused));
    }
  } else {
    const StepPart part = gathered(body, runs, keep, dims_);
    count(state_.store.push(part.grads.tables, part.grads.keys, part.grads.floats.data(), body.hypers, header.clock,
                            unique, &refused));
  }
  return now_ns() - start;
}

bool RequestHandler::assign(const FrameHeader& header, const BodyView& body) {
  const std::vector<Run> runs = runs_of(header, body, window_, dims_);
  const uint64_t start = now_ns();
  std::vector<uint16_t> foreign;
  for (const Run& run : runs) {
    state_.store.assign(body.tables.subspan(run.first, run.keys), body.keys.subspan(run.first, run.keys), run.floats,
                        &foreign, (header.flags & kKeep) != 0);
  }
  ++state_.count.assigns;
  if (!foreign.empty()) return refuse_slots(header, foreign, now_ns() - start);
  return reply_done(header, now_ns() - start);
}

bool RequestHandler::declare(const FrameHeader& header, std::span<const uint8_t> body) {
  for (const TableSpec& spec : decode_tables(body)) state_.store.declare(spec);
  ++state_.count.declares;
  FrameHeader answer = reply_to(header);
  answer.step = state_.store.clock.now();
  return reply(answer, {});
}

bool RequestHandler::scan(const FrameHeader& header, std::span<const uint8_t> body) {
  ByteReader<BadInput> request{body, "a scan names one table, and slots"};
  const auto table = request.get<TableId>();
  std::vector<uint16_t> slots;
  request.elements(slots, request.rest.size() / sizeof(uint16_t));
  request.finish();
  const uint32_t dim = dims_.of(table);
  std::vector<Key> keys;
  std::vector<float> rows;
  uint64_t done = 0;
  while (done < slots.size() && keys.size() * (sizeof(Key) + dim * sizeof(float)) < kScanBytes) {
    if (!state_.store.scan(table, slots[done], keys, rows)) break;
    ++done;
  }
  if (done == 0 && !slots.empty()) return refuse_slots(header, {slots.front()}, 0);
  if (keys.size() > UINT32_MAX || rows.size() != keys.size() * dim) throw std::runtime_error("a slot read badly");
  ++state_.count.scans;
  FrameHeader answer = reply_to(header);
  answer.keys = static_cast<uint32_t>(keys.size());
  answer.step = done;
  answer.body_bytes = keys.size() * sizeof(Key) + rows.size() * sizeof(float);
  seal(answer);
  std::vector<iovec> out = {
      {&answer, sizeof answer}, {keys.data(), keys.size() * sizeof(Key)}, {rows.data(), rows.size() * sizeof(float)}};
  state_.count.bytes_out += sizeof answer + answer.body_bytes;
  return send_all(line_, out) == Io::ok;
}

bool RequestHandler::stats(const FrameHeader& header) {
  const ServerStats figures = state_.stats();
  return reply(reply_to(header), {reinterpret_cast<const uint8_t*>(&figures), sizeof figures});
}

bool RequestHandler::reply(const FrameHeader& reply, std::span<const uint8_t> body) {
  state_.count.bytes_out += sizeof reply + body.size();
  return send_frame(line_, reply, body) == Io::ok;
}

bool RequestHandler::reply_done(const FrameHeader& request, uint64_t server_ns) {
  FrameHeader answer = reply_to(request);
  answer.server_ns = server_ns;
  return reply(answer, {});
}

bool RequestHandler::fail(const FrameHeader& request, Status status, const std::string& why) {
  if (mid_reply_) return false;
  state_.count.bytes_out += sizeof request + why.size();
  return send_failure(line_, request, status, why) == Io::ok;
}

bool RequestHandler::refuse_slots(const FrameHeader& request, std::vector<uint16_t> slots, uint64_t server_ns) {
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  const auto owned = state_.ownership();
  Refusal refusal{std::move(slots), {}, {}};
  for (const uint16_t slot : refusal.slots) {
    const uint16_t owner = owned->owner.empty() ? kNoOwner : owned->owner[slot];
    const bool leaving = owner == state_.options.index && owned->mine[slot] == 0;
    refusal.owners.push_back(leaving ? kNoOwner : owner);
    const auto known = owned->addresses.find(refusal.owners.back());
    if (known != owned->addresses.end()) refusal.addresses.insert(*known);
  }
  FrameHeader answer = reply_to(request);
  answer.status = static_cast<uint16_t>(Status::wrong_owner);
  answer.epoch = owned->epoch;
  answer.server_ns = server_ns;
  return reply(answer, encode(refusal));
}

// The reply to a pull, sent piece by piece.
struct RowReply : NoCopy {
  explicit RowReply(const FrameHeader& header) : head(header), out{{&head, sizeof head}} {}
  void add(const float* rows, size_t from, size_t to) {  // `from`, `to`: bytes
    if (from != to) out.push_back({const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(rows)) + from, to - from});
  }

  FrameHeader head;
  std::vector<iovec> out;      // buffers that are not sent yet
  std::vector<uint16_t> left;  // slots that moved away after their rows had been read
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
  // If other requests are in progress, helper threads would only compete with them.
  const bool alone = state_.serving == 1;
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

// Looks up one piece of the reply and sends its rows as they are found. What is not sent yet goes together with the
// trailer.
bool RequestHandler::look_up(const BodyView& body, size_t first, size_t end, bool helped, uint32_t common,
                             RowReply& reply) {
  const auto tables = body.tables.subspan(first, end - first);
  size_t told = 0, at = 0, sent = 0;  // number of keys that are found; bytes that are ready; bytes that are sent
  bool gone = false;
  uint64_t since = now_ns();
  const bool last = end == body.keys.size();
  state_.store.pull(tables, body.keys.subspan(first, end - first), rows_.data(), &reply.left, helped, [&](size_t keys) {
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
  if (common != 0) {  // in the usual case, there is no need to look at every key
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

// Requests of a bsp group: wait for a step, apply it, regroup (bsp_steps.h). Protocol: docs/design/training.md.
bool RequestHandler::step(const FrameHeader& header) {
  FrameHeader answer = reply_to(header);
  // Waits at most as long as a pull would, even if the frame asks for more, because very long times would overflow the
  // clock.
  const double wait_s = std::min(static_cast<double>(header.clock) / 1000, state_.options.step_wait_s);
  if ((header.flags & kBsp) != 0) {
    answer.server_ns = state_.steps.apply(header.step);
    state_.count.update_ns += answer.server_ns;
  } else if (!state_.steps.await_complete(header.step, wait_s)) {
    return fail(
        header, Status::step_missing,
        "step " + std::to_string(header.step) + " is not complete on server " + std::to_string(state_.options.index));
  }
  return reply(answer, {});
}

bool RequestHandler::regroup(const FrameHeader& header) {
  FrameHeader answer = reply_to(header);
  if ((header.flags & kBsp) != 0) {
    if (header.keys == 0) throw BadInput("workers is 0; a group needs at least 1");
    const bool at_rest = (header.flags & kAtRest) != 0;
    state_.count.update_ns += state_.steps.settle(header.step, header.keys, header.generation, at_rest);
  } else {
    state_.raise_generation(header.generation);
    answer.step = state_.steps.complete();
  }
  return reply(answer, {});
}

}  // namespace springtide
