// One request to one server: the bytes to send, where the reply goes, and the state of the request. In: parts of a step
// for one server. Out: a frame for peer.h, over the socket or the shared window.
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

// The window of shared memory of a client, with its free memory. All servers on this host and all buffers of this
// client share the window.
struct SharedWindow {
  explicit SharedWindow(uint64_t bytes) : window(Window::create(bytes)), heap(window.valid() ? bytes : 0) {}
  Window window;
  WindowHeap heap;
};

struct Call : NoCopy {
  ~Call();

  struct Copy {
    float* to;
    const void* from;
    size_t bytes;
  };

  FrameHeader header;
  std::vector<uint8_t> head;  // the sections before the keys, or a whole small body
  std::vector<iovec> frame;   // everything that is sent over the socket
  std::vector<iovec> out;     // the part of `frame` that is not sent yet
  uint64_t out_bytes = 0;     // bytes of body and floats, on the socket or in the window
  std::vector<iovec> in;      // pull over the socket: memory for the rows
  uint64_t in_bytes = 0;
  std::vector<Copy> copies;  // pull through the window: rows to copy to memory outside the window
  std::shared_ptr<SharedWindow> shared;
  std::vector<uint64_t> pieces;  // pieces of the window that this call uses until the reply

  FrameHeader answer;
  std::vector<uint8_t> reply;  // any reply body except rows
  Clock::time_point sent{};
  double timeout_s = 0;
  // The lock of the peer guards the members below.
  int busy = 0;  // number of threads that use the caller's memory
  bool done = false;
  bool answered = false;    // true if the server has replied, with success or an error
  bool slots_left = false;  // pull: true if some slots have moved away, so that the rows are invalid
  std::exception_ptr error;
};

// Content of a push other than its rows; empty for any other request.
struct Message {
  std::span<const BatchRange> batches;
  std::span<const TableHyper> hypers;
  std::span<const uint16_t> slots;  // the slots that the push covers, if the flag kNamesSlots is set
};

// Fills in the body, the buffers and the counts of call.header. Kind, flags and identity must be set. Uses the window
// if `shared` is given and has room, and otherwise the socket.
void compose(Call& call, std::span<const Slice> slices, const Message& message,
             const std::shared_ptr<SharedWindow>& shared);
void compose_small(Call& call, std::vector<uint8_t> body);
// Returns true if sending the request twice does no harm. Only one kind of request does harm: a push that names no
// batches and is not a part of a bsp step.
bool may_repeat(const Call& call);

}  // namespace springtide
