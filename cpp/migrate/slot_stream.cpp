#include "migrate/slot_stream.h"

#include "migrate/copy_throttle.h"
#include "slots/slot_image.h"

namespace springtide {
namespace {

constexpr size_t kSlotsAhead = 16;          // whose images travel before the first of them is closed
constexpr uint64_t kBytesAhead = 64 << 20;  // of images: a large slot goes with few others
constexpr size_t kSlotsACut = 16;
constexpr uint64_t kRoom = 4 << 20;  // in shared memory for one image; a larger one goes through the socket

std::vector<uint64_t> names_of(const ServerState& state, const std::vector<uint16_t>& slots) {
  std::vector<uint64_t> names;
  for (const uint16_t slot : slots) names.push_back(state.transfer_ids.at(slot));
  return names;
}

}  // namespace

SlotStream::SlotStream(ServerState& state, SlotTarget& to, std::vector<uint16_t> slots)
    : state_(state),
      to_(to),
      slots_(std::move(slots)),
      transfer_ids_(names_of(state, slots_)),
      window_(to.share(kSlotsAhead * kRoom)),
      thread_([this] { send_all(); }) {}

SlotStream::~SlotStream() {
  {
    const std::lock_guard hold(mutex_);
    over_ = true;
    if (!all_sent_) to_.cut();
  }
  room_.notify_all();
  thread_.join();
}

SlotStream::Sent SlotStream::arrived() {
  const std::lock_guard hold(mutex_);
  if (under_way_.empty()) throw PeerLost("sent a reply without a request");
  const Sent oldest = under_way_.front();
  under_way_.pop_front();
  bytes_under_way_ -= oldest.bytes;
  room_.notify_all();
  return oldest;
}

void SlotStream::rethrow() {
  const std::lock_guard hold(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void SlotStream::send_all() {
  try {
    ImageWriter image;  // its memory is used again and again
    CopyThrottle throttle(state_);
    uint64_t cut = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      {
        std::unique_lock hold(mutex_);
        room_.wait(hold, [&] { return over_ || (under_way_.size() < kSlotsAhead && bytes_under_way_ < kBytesAhead); });
        if (over_) return;
      }
      if (i % kSlotsACut == 0) cut = state_.store.cut();
      if (window_.valid()) {  // whoever used this part last is answered: no more than so many are ahead
        image.write_into({window_.at(i % kSlotsAhead * kRoom, kRoom, 64), kRoom});
      }
      state_.store.export_slot(slots_[i], 0, image);
      {
        const std::lock_guard hold(mutex_);
        under_way_.push_back({slots_[i], cut, image.bytes().size()});
        bytes_under_way_ += image.bytes().size();
      }
      ++sends_;
      to_.send(Kind::take, slots_[i], image.bytes(), transfer_ids_[i]);
      ++sends_;
      throttle.pause();
    }
    const std::lock_guard hold(mutex_);
    all_sent_ = true;
  } catch (...) {
    const std::lock_guard hold(mutex_);
    failure_ = std::current_exception();
    to_.cut();  // whoever waits for an answer hears of it
  }
}

}  // namespace springtide
