// One request to one server: the bytes to send, where the reply goes, its state.
// In: parts of a step for one server. Out: a frame for peer.h, over the socket or the shared window.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "net/socket.h"
#include "net/window.h"
#include "step/backend.h"
#include "wire/wire.h"

namespace springtide {

// The client's window and what is free of it; shared by all servers on this host and by the buffers handed out.
struct SharedWindow {
  explicit SharedWindow(uint64_t bytes) : window(Window::create(bytes)), heap(window.valid() ? bytes : 0) {}
  Window window;
  WindowHeap heap;
};

struct Call {
  Call() = default;
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  struct Copy {
    float* to;
    const void* from;
    size_t bytes;
  };

  FrameHeader header;
  std::vector<uint8_t> head;  // sections before the keys, or the whole of a small body
  std::vector<iovec> frame;   // all of what is sent, over the socket
  std::vector<iovec> out;     // what of it is still to be sent
  uint64_t out_bytes = 0;     // of body and floats, wherever they lie
  std::vector<iovec> in;      // pull over the socket: where the rows go
  uint64_t in_bytes = 0;
  std::vector<Copy> copies;  // pull through the window: rows for memory that is not in it
  std::shared_ptr<SharedWindow> shared;
  std::vector<uint64_t> pieces;  // of the window, ours until the reply

  FrameHeader answer;
  std::vector<uint8_t> reply;  // any body but rows
  Clock::time_point sent{};
  double timeout_s = 0;
  // The rest belongs to the peer's lock.
  int busy = 0;  // threads that use the caller's memory right now
  bool done = false;
  bool answered = false;    // the server is through with it, well or not
  bool slots_left = false;  // pull: rows that mean nothing, their slots moved away
  std::exception_ptr error;
};

// What a push says beside its rows; empty for the others.
struct Message {
  std::span<const BatchRange> batches;
  std::span<const TableHyper> hypers;
  std::span<const uint16_t> slots;  // the only ones it speaks for, when its flags say that it names them
};

// Fills in body, buffers and counts of call.header, whose kind, flags and identity are set already. Through
// the window when `shared` is given and has room; over the socket else.
void compose(Call& call, std::span<const Slice> slices, const Message& message,
             const std::shared_ptr<SharedWindow>& shared);
void compose_small(Call& call, std::vector<uint8_t> body);
// Whether a copy of it does no harm: everything but a push that neither names its batches nor is a part of a step.
bool may_repeat(const Call& call);

}  // namespace springtide
