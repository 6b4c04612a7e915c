// What servers ask of each other: to take a slot, to own many at once. Who asks: handover.h,
// hurried.h. A request never leaves a slot half laid in: an image is whole or refused.
#include "net/frame_io.h"
#include "server/requests/request_handler.h"
#include "slots/slot_batch.h"
#include "slots/slot_reference.h"

namespace springtide {

uint32_t RequestHandler::handed_slot(uint64_t named) const {
  if (state_.ownership()->mine.empty()) {
    throw BadInput("this server does not know its own slots yet; try again");
  }
  if (named >= state_.store.slots()) throw BadInput("slot " + std::to_string(named) + " there is not");
  return static_cast<uint32_t>(named);
}

// Whether it is here, or was: who took it may have given it on since, and its source need not know of that.
bool RequestHandler::had(uint32_t slot, uint64_t gift) const {
  const Gifts::Fate fate = state_.gifts.fate(slot, gift);
  if (fate == Gifts::Fate::refused) throw BadInput("has refused this slot before; give it anew");
  return fate == Gifts::Fate::taken || state_.store.is_open(slot);
}

// Whether what is not here may be taken now.
void RequestHandler::check_turn(uint32_t slot) const {
  if (state_.leaves) throw BadInput("is about to leave, and takes no slots");
  if (turn_ != state_.turn) throw BadInput("a server was lost since this connection was made; try again");
  if (state_.doubts().contains(static_cast<uint16_t>(slot))) {
    throw BadInput("waits to hear what became of this slot, which it has given away; try again");
  }
}

// The image is laid into a slot that stays closed: nobody reads or writes it until it is owned.
// A slot that is open here has been given already, and the source gave nothing since: it had closed it. That
// frame may have waited on an earlier connection of the source and come in between at any moment.
bool RequestHandler::take(const FrameHeader& header, std::span<const uint8_t> body) {
  FrameHeader answer = reply_to(header);
  {
    const std::shared_lock in_turn(state_.taking);
    const uint32_t slot = handed_slot(header.step);
    const auto alone = state_.gifts.hold(slot);
    try {
      if (had(slot, header.clock)) {
        answer.step = 1;
      } else {
        check_turn(slot);
        state_.expects(slot);
        state_.store.import_closed(slot, body, false);
      }
    } catch (const std::exception&) {  // its source may open it again: this gift must not be taken later
      state_.gifts.settle(slot, header.clock, Gifts::Fate::refused);
      throw;
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
  return take_all(header, batch, giver);
}

// Its answer must come: a source that hears of a failure opens its slots again, and those that were taken
// would have two owners. Without memory to note what was taken this process ends.
bool RequestHandler::take_all(const FrameHeader& header, const SlotBatch& batch, int giver) noexcept {
  BatchAnswer answer;
  std::vector<uint16_t> fresh;
  std::vector<const SlotBatch::Part*> refused;
  ImageWriter image;
  {
    const std::shared_lock in_turn(state_.taking);
    for (const SlotBatch::Part& part : batch.parts) {
      const auto alone = state_.gifts.hold(part.slot);
      try {
        const uint32_t slot = handed_slot(part.slot);
        if (!had(slot, part.gift)) {
          check_turn(slot);
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
        state_.gifts.settle(slot, part.gift, Gifts::Fate::taken);
        answer.taken.push_back(part.slot);
      } catch (const std::exception& e) {
        refused.push_back(&part);
        answer.why = e.what();
      }
    }
    state_.got(fresh);
    if (batch.by_reference && answer.taken.empty()) refused.clear();  // the rows themselves come next
    for (const SlotBatch::Part* part : refused) {  // their source opens them again: they must not come later
      const auto alone = state_.gifts.hold(part->slot);
      state_.gifts.settle(part->slot, part->gift, Gifts::Fate::refused);
      if (state_.gifts.fate(part->slot, part->gift) == Gifts::Fate::taken) answer.taken.push_back(part->slot);
    }
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
