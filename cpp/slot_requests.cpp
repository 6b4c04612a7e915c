// What servers ask of each other: to take a slot, to own it, to own many at once. Who asks: handover.h,
// hurried.h. A request never leaves a slot half laid in: an image is whole or refused.
#include "frame_io.h"
#include "request_handler.h"
#include "slot_batch.h"
#include "slot_reference.h"

namespace springtide {

uint32_t RequestHandler::handed_slot(uint64_t named) const {
  if (state_.ownership()->mine.empty()) {
    throw BadInput("this server does not know its own slots yet; try again");
  }
  if (named >= state_.store.slots()) throw BadInput("slot " + std::to_string(named) + " there is not");
  const auto slot = static_cast<uint32_t>(named);
  if (turn_ != state_.turn && !state_.store.is_open(slot)) {  // what it has it has, and must say so
    throw BadInput("a server was lost since this connection was made; try again");
  }
  return slot;
}

// The image is laid into a slot that stays closed: nobody reads or writes it until it is owned.
bool RequestHandler::take(const FrameHeader& header, std::span<const uint8_t> body) {
  return lay_in(header, body, false);
}

bool RequestHandler::own(const FrameHeader& header, std::span<const uint8_t> body) {
  return lay_in(header, body, true);
}

// A slot that is open here has been given already, and the source gave nothing since: it had closed it. That
// frame may have waited on an earlier connection of the source and come in between at any moment.
bool RequestHandler::lay_in(const FrameHeader& header, std::span<const uint8_t> body, bool open) {
  FrameHeader answer = reply_to(header);
  {
    const std::shared_lock in_turn(state_.taking);
    const uint32_t slot = handed_slot(header.step);
    if (!open && !state_.store.is_open(slot)) state_.expects(slot);
    try {
      state_.store.import_closed(slot, body, open);
      if (open) state_.got(static_cast<uint16_t>(slot));
    } catch (const BadInput&) {
      if (!state_.store.is_open(slot)) throw;
      answer.step = 1;
    }
  }
  return reply(answer, {});
}

// Whole slots, each on its own: what one lacks is no reason to refuse the others. Rows that lie in the memory
// of the server that gives them are read from there; it keeps them closed until it has its answer.
bool RequestHandler::own_all(const FrameHeader& header, std::span<const uint8_t> body) {
  const SlotBatch batch = decode_batch(body);
  const int giver = batch.by_reference ? peer_process(line_.fd) : 0;
  if (batch.by_reference && giver == 0) throw BadInput("slots by reference come from a process on this host");
  BatchAnswer answer;
  ImageWriter image;
  {
    const std::shared_lock in_turn(state_.taking);
    for (const SlotBatch::Part& part : batch.parts) {
      try {
        const uint32_t slot = handed_slot(part.slot);
        if (!state_.store.is_open(slot)) {
          std::span<const uint8_t> bytes = part.bytes;
          if (batch.by_reference) {
            const SlotReference there = decode_reference(bytes);
            for (const TableReference& table : there.tables) check_row(table);
            read_slot(giver, there, image);
            bytes = image.bytes();
          }
          state_.store.import_closed(slot, bytes, true);
        }
        answer.taken.push_back(part.slot);
      } catch (const BadInput& e) {
        answer.why = e.what();
      }
    }
    state_.got(answer.taken);
  }
  return reply(reply_to(header), encode(answer));
}

// Before memory is set aside for its rows: are they as long there as here?
void RequestHandler::check_row(const TableReference& table) const {
  const TableSpec& here = state_.store.table(table.shape.id);
  if (table.shape.dim == here.dim && table.shape.state_floats <= 4 * here.dim + 4)
    return;  // no optimizer keeps more
  throw BadInput("table '" + here.name + "' has rows of another length there");
}

}  // namespace springtide
