#include "client/call.h"

#include <cstring>
#include <optional>

namespace springtide {
namespace {

constexpr uint8_t kZeros[8] = {};

void add(std::vector<iovec>& buffers, const void* from, uint64_t bytes) {
  if (bytes != 0) buffers.push_back({const_cast<void*>(from), bytes});
}

void count(Call& call, std::span<const Slice> slices) {
  uint64_t keys = 0;
  for (const Slice& slice : slices) keys += slice.keys().size();
  if (keys > UINT32_MAX) throw BadInput("one request holds at most 2^32 - 1 keys");
  call.header.keys = static_cast<uint32_t>(keys);
}

void compose_socket(Call& call, std::span<const Slice> slices, const Message& message) {
  call.head = encode_prefix(call.header, message.batches, message.hypers, {}, message.slots);
  const BodyLayout at = layout_of(call.header);
  const uint64_t padding = at.floats - at.tables - call.header.keys * sizeof(TableId);
  const bool pull = call.header.kind == static_cast<uint8_t>(Kind::pull);
  call.header.body_bytes = at.floats;
  add(call.out, &call.header, sizeof call.header);
  add(call.out, call.head.data(), call.head.size());
  for (const Slice& slice : slices) add(call.out, slice.keys().data(), slice.keys().size_bytes());
  for (const Slice& slice : slices) add(call.out, slice.tables().data(), slice.tables().size_bytes());
  add(call.out, kZeros, padding);
  for (const Slice& slice : slices) {
    add(pull ? call.in : call.out, slice.rows(), slice.bytes());
    (pull ? call.in_bytes : call.header.body_bytes) += slice.bytes();
  }
  call.out_bytes = call.header.body_bytes;
}

// Allocates a piece of the shared window, which is released with the call.
uint8_t* piece_of(Call& call, uint64_t bytes, uint64_t& offset) {
  const std::optional<uint64_t> piece = call.shared->heap.allocate(bytes);
  if (!piece) return nullptr;
  call.pieces.push_back(*piece);
  offset = *piece;
  return call.shared->window.at(offset, bytes, 8);
}

// Finds where the floats of each slice are in the window: in their own memory, or in a piece that they are copied to or
// from.
bool place_floats(Call& call, std::span<const Slice> slices, std::vector<FloatSpan>& spans) {
  const bool pull = call.header.kind == static_cast<uint8_t>(Kind::pull);
  for (const Slice& slice : slices) {
    FloatSpan span{0, slice.bytes()};
    if (const auto there = call.shared->window.offset_of(slice.rows(), slice.bytes())) {
      span.offset = *there;
    } else {
      uint8_t* piece = piece_of(call, span.bytes, span.offset);
      if (piece == nullptr) return false;
      if (pull) {
        call.copies.push_back({slice.rows(), piece, span.bytes});
      } else {
        std::memcpy(piece, slice.rows(), span.bytes);
      }
    }
    spans.push_back(span);
    (pull ? call.in_bytes : call.out_bytes) += span.bytes;
  }
  return true;
}

bool compose_window(Call& call, std::span<const Slice> slices, const Message& message) {
  std::vector<FloatSpan> spans;
  if (!place_floats(call, slices, spans)) return false;
  call.header.flags |= kInWindow;
  call.head = encode_prefix(call.header, message.batches, message.hypers, spans, message.slots);
  const BodyLayout at = layout_of(call.header);
  uint8_t* body = piece_of(call, at.floats, call.header.window_offset);
  if (body == nullptr) return false;
  std::memcpy(body, call.head.data(), call.head.size());
  uint64_t keys = at.keys, tables = at.tables;
  for (const Slice& slice : slices) {
    std::memcpy(body + keys, slice.keys().data(), slice.keys().size_bytes());
    std::memcpy(body + tables, slice.tables().data(), slice.tables().size_bytes());
    keys += slice.keys().size_bytes();
    tables += slice.tables().size_bytes();
  }
  call.header.body_bytes = at.floats;
  call.out_bytes += at.floats;
  add(call.out, &call.header, sizeof call.header);
  return true;
}

void give_back(Call& call) {
  for (const uint64_t piece : call.pieces) call.shared->heap.release(piece);
  call.pieces.clear();
}

}  // namespace

Call::~Call() {
  // After a failure, the server may still write to the piece, so the piece is not used again.
  if (shared && (!error || answered)) give_back(*this);
}

void compose(Call& call, std::span<const Slice> slices, const Message& message,
             const std::shared_ptr<SharedWindow>& shared) {
  count(call, slices);
  if (shared) {
    call.shared = shared;
    if (compose_window(call, slices, message)) return;
    give_back(call);  // the window is full, so this call goes over the socket
    call.copies.clear();
    call.in_bytes = call.out_bytes = 0;
    call.header.flags = static_cast<uint8_t>(call.header.flags & ~kInWindow);
    call.header.window_offset = 0;
  }
  compose_socket(call, slices, message);
}

bool may_repeat(const Call& call) {
  const bool push = call.header.kind == static_cast<uint8_t>(Kind::push);
  return !push || (call.header.flags & kBsp) != 0 || call.header.batches != 0;
}

void compose_small(Call& call, std::vector<uint8_t> body) {
  call.head = std::move(body);
  call.header.body_bytes = call.out_bytes = call.head.size();
  add(call.out, &call.header, sizeof call.header);
  add(call.out, call.head.data(), call.head.size());
}

}  // namespace springtide
