// Handles slots from other servers: imports an image, and takes ownership of a batch of slots. The functions are a part
// of RequestHandler. An image is imported completely or refused. handover.h is the sender's side.
#include "net/frame_io.h"
#include "server/requests/request_handler.h"
#include "slots/slot_batch.h"

namespace springtide {

uint32_t RequestHandler::checked_slot(uint64_t named) const {
  throw_if<BadInput>(state_.ownership()->mine.empty(), "this server does not know its own slots yet; try again");
  if (named >= state_.store.slots()) throw BadInput("slot ", named, " there is not");
  return static_cast<uint32_t>(named);
}

// Returns true if this server has the slot, or has accepted this transfer before. In the meantime, this server may have
// passed the slot on, which the source need not know.
bool RequestHandler::has_or_had(uint32_t slot, uint64_t transfer) const {
  const TransferLog::Outcome outcome = state_.transfers.outcome(slot, transfer);
  if (outcome == TransferLog::Outcome::refused)
    throw BadInput("has refused this transfer before; start a new transfer");
  return outcome == TransferLog::Outcome::accepted || state_.store.is_open(slot);
}

// Throws unless this server may import the slot now.
void RequestHandler::check_importable(uint32_t slot) const {
  if (state_.draining) throw BadInput("is draining and accepts no slots");
  if (import_epoch_ != state_.import_epoch)
    throw BadInput("a server was lost since this connection was made; try again");
  throw_if<BadInput>(state_.slots_in_doubt().contains(static_cast<uint16_t>(slot)),
                     "has handed this slot over itself and has no reply yet; try again");
}

// Imports an image into a slot that stays closed. If the slot is already open on this server, an earlier frame of the
// source transferred it over another connection. The source has not changed the slot since then.
bool RequestHandler::take(const FrameHeader& header, std::span<const uint8_t> body) {
  FrameHeader answer = reply_to(header);
  {
    const std::shared_lock in_turn(state_.import_mutex);
    const uint32_t slot = checked_slot(header.step);
    const auto alone = state_.transfers.lock(slot);
    try {
      if (has_or_had(slot, header.clock)) {
        answer.step = 1;
      } else {
        check_importable(slot);
        state_.mark_owner_unknown(slot);
        state_.store.import_closed(slot, body, false);
      }
      // The source may open the slot again, so this transfer must not be accepted later.
    } catch (const std::exception&) {
      state_.transfers.record(slot, header.clock, TransferLog::Outcome::refused);
      throw;
    }
  }
  return reply(answer, {});
}

// Takes whole slots, and accepts or refuses each slot separately. If the frame has references instead of rows, the rows
// are read from the source's memory. The source keeps the slots closed until it gets the reply.
bool RequestHandler::own_all(const FrameHeader& header, std::span<const uint8_t> body) {
  const SlotBatch batch = decode_batch(body);
  const int giver = batch.by_reference ? peer_process(line_.fd) : 0;
  if (batch.by_reference && giver == 0) throw BadInput("slots by reference need a source process on this host");
  return take_all(header, batch, giver);
}

// This must send a reply. A source that gets an error opens its slots again, and slots that were taken here would then
// have two owners. If there is no memory to record the slots that were taken, the process ends (noexcept).
bool RequestHandler::take_all(const FrameHeader& header, const SlotBatch& batch, int giver) noexcept {
  BatchAnswer answer;
  std::vector<uint16_t> fresh;
  std::vector<const SlotBatch::Part*> refused;
  ImageWriter image;
  {
    const std::shared_lock in_turn(state_.import_mutex);
    for (const SlotBatch::Part& part : batch.parts) {
      const auto alone = state_.transfers.lock(part.slot);
      try {
        const uint32_t slot = checked_slot(part.slot);
        if (!has_or_had(slot, part.transfer)) {
          check_importable(slot);
          std::span<const uint8_t> bytes = part.bytes;
          if (batch.by_reference) {
            const SlotReference there = decode_reference(bytes);
            for (const TableReference& table : there.tables) check_row(table);
            read_slot(giver, there, image);
            bytes = image.bytes();
          }
          state_.store.import_closed(slot, bytes, true);
          fresh.push_back(part.slot);
        }
        state_.transfers.record(slot, part.transfer, TransferLog::Outcome::accepted);
        answer.taken.push_back(part.slot);
      } catch (const std::exception& e) {
        refused.push_back(&part);
        answer.why = e.what();
      }
    }
    state_.record_received(fresh);
    if (batch.by_reference && answer.taken.empty()) refused.clear();  // the source will send the rows themselves
    // The source opens these slots again, so their transfers must not be accepted later.
    for (const SlotBatch::Part* part : refused) {
      const auto alone = state_.transfers.lock(part->slot);
      state_.transfers.record(part->slot, part->transfer, TransferLog::Outcome::refused);
      if (state_.transfers.outcome(part->slot, part->transfer) == TransferLog::Outcome::accepted)
        answer.taken.push_back(part->slot);
    }
  }
  return reply(reply_to(header), encode(answer));
}

// Checks that rows have the same length on both servers, before memory is allocated for them.
void RequestHandler::check_row(const TableReference& table) const {
  const TableSpec& here = state_.store.spec(table.shape.id);
  if (table.shape.dim == here.dim && table.shape.state_floats <= 4 * here.dim + 4) return;  // no optimizer keeps more
  throw BadInput("table '", here.name, "' has rows of another length there");
}

}  // namespace springtide
