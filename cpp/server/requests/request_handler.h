// Serves the requests of one connection: pull, push, assign, declare, scan, stats, bsp steps, and slots from peers. In:
// frames whose headers were checked (server.cpp). Out: a reply on the socket.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/socket.h"
#include "net/window.h"
#include "server/requests/row_runs.h"
#include "server/requests/server_state.h"
#include "wire/wire.h"

namespace springtide {

struct RowReply;
struct SlotBatch;
struct TableReference;

class RequestHandler {
 public:
  RequestHandler(ServerState& state, Line line)
      : state_(state), line_(line), import_epoch_(state.import_epoch), dims_(state.store) {}

  // Returns false if the connection must end, because it broke or because the peer violated the protocol.
  bool handle(const FrameHeader& header, std::span<const uint8_t> body);
  void use(Window window) { window_ = std::move(window); }
  const Window& window() const { return window_; }

 private:
  bool dispatch(const FrameHeader& header, std::span<const uint8_t> body);
  bool pull(const FrameHeader& header, const BodyView& body);
  bool stream(const FrameHeader& header, const BodyView& body, uint64_t waited_ns);
  bool look_up(const BodyView& body, size_t first, size_t end, bool helped, uint32_t common, RowReply& reply);
  // Returns the end of the piece of a reply that starts at `at`, and sets its `bytes`. `common` is the dim of all
  // tables, or 0 if row lengths differ.
  size_t piece_end(std::span<const TableId> tables, size_t at, uint32_t common, size_t& bytes);
  bool fill_window(const FrameHeader& header, const BodyView& body, std::span<const Run> runs, uint64_t waited_ns);
  bool push(const FrameHeader& header, const BodyView& body);
  bool push_once(const FrameHeader& header, const BodyView& body, std::span<const Run> runs,
                 const SlotOwnership& owned);
  // If slots now belong to another server and were therefore not applied, adds them to `refused`.
  uint64_t apply(const FrameHeader& header, const BodyView& body, std::span<const Run> runs,
                 std::span<const uint8_t> keep, std::vector<uint16_t>& refused);
  void note_push(const FrameHeader& header, const BodyView& body, uint64_t applied, uint64_t spent_ns);
  bool assign(const FrameHeader& header, const BodyView& body);
  bool declare(const FrameHeader& header, std::span<const uint8_t> body);
  bool scan(const FrameHeader& header, std::span<const uint8_t> body);
  bool stats(const FrameHeader& header);
  bool step(const FrameHeader& header);
  bool regroup(const FrameHeader& header);
  uint32_t checked_slot(uint64_t named) const;  // slot_requests.cpp has this function and the next five
  bool has_or_had(uint32_t slot, uint64_t transfer) const;
  void check_importable(uint32_t slot) const;
  bool take(const FrameHeader& header, std::span<const uint8_t> body);
  bool own_all(const FrameHeader& header, std::span<const uint8_t> body);
  bool take_all(const FrameHeader& header, const SlotBatch& batch, int giver) noexcept;
  void check_row(const TableReference& table) const;

  bool reply(const FrameHeader& reply, std::span<const uint8_t> body);
  bool reply_done(const FrameHeader& request, uint64_t server_ns);  // without a body
  bool fail(const FrameHeader& request, Status status, const std::string& why);
  bool refuse_slots(const FrameHeader& request, std::vector<uint16_t> slots, uint64_t server_ns);
  void check_push(const FrameHeader& header, const BodyView& body);

  ServerState& state_;
  const Line line_;
  const uint64_t import_epoch_;
  Dims dims_;
  Window window_;
  std::vector<float> rows_;  // one piece of a reply
  std::vector<uint8_t> keep_;
  // A part of the reply has been sent, so an error can no longer be reported: the connection can only be closed.
  bool mid_reply_ = false;
};

}  // namespace springtide
