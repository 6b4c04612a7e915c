// Sends slots to a second server. A thread copies whole slots and sends them one after another, while the owner of the
// SlotStream reads the replies. Copying, sending and importing therefore overlap. handover.cpp uses this file.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "migrate/handover.h"
#include "net/frame_io.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "net/tls_session.h"
#include "net/window.h"
#include "server/requests/server_state.h"
#include "slots/slot_image.h"
#include "wire/wire.h"

namespace springtide {

constexpr uint64_t kReplyBytes = 1 << 16;

// A connection to the server that receives slots, over TCP or, on one host, over a Unix socket. Replies arrive in the
// order of the requests.
class SlotTarget {
 public:
  // PeerLost
  SlotTarget(const ServerState& state, const HandoverOptions& to) {
    Fd fd = connect_tcp(to.host, to.port, Clock::now() + seconds_of(to.timeout_s));
    if (!fd) throw PeerLost("cannot be reached: ", std::strerror(errno));
    tune_tcp(fd.get());
    // `exact` is true because handover.cpp polls for replies.
    link_ = Link(std::move(fd), {state.options.tls, TlsSide::caller, "server", to.timeout_s, true});
    set_timeouts(link_.line(), to.timeout_s, to.timeout_s);
    FrameHeader who;
    who.rank = state.options.index;
    who.generation = state.generation;
    const Welcome terms = offer_handshake(link_.line(), state.options.secret, who);
    throw_if<PeerLost>(terms.server_index != to.server, "says it is server ", terms.server_index);
    if (terms.slots != state.store.slots()) throw PeerLost("has another number of slots");
    generation_ = terms.generation;
    if (!state.options.shared_memory) return;
    if (Fd local = connect_on_host(terms, state.options.secret, who, to.timeout_s)) {
      link_ = std::move(local);
      local_ = true;
    }
  }

  // Throws PeerLost. The target reads a body in the shared window in place, so the body must not change until the reply
  // arrives.
  void send(Kind kind, uint64_t slot, std::span<const uint8_t> body, uint64_t transfer = 0) {
    FrameHeader header;
    header.kind = static_cast<uint8_t>(kind);
    header.request = ++sent_;
    header.step = slot;
    header.clock = transfer;
    header.generation = generation_;
    if (const auto offset = window_.offset_of(body.data(), body.size())) {
      header.flags |= kInWindow;
      header.window_offset = *offset;
      header.body_bytes = body.size();
      seal(header);
      std::vector<iovec> buffers = {{&header, sizeof header}};
      if (send_all(link_.line(), buffers) != Io::ok) throw PeerLost("went away");
      return;
    }
    if (send_frame(link_.line(), header, body) != Io::ok) throw PeerLost("went away");
  }
  // Returns the reason why the target refused, or an empty string. Throws PeerLost if no reply arrived. `body` gets the
  // body of the reply.
  std::string receive(FrameHeader& answer) {
    std::vector<uint8_t> body;
    return receive(answer, body);
  }
  std::string receive(FrameHeader& answer, std::vector<uint8_t>& body) {
    std::string why;
    if (const Io io = receive_frame(link_.line(), answer, body, kReplyBytes, why); io != Io::ok || !why.empty()) {
      throw PeerLost(why.empty() ? describe(io, link_.line()) : why);
    }
    if (answer.request != ++received_) throw PeerLost("sent a reply without a request");
    return answer.status == static_cast<uint16_t>(Status::ok) ? "" : text_of(body) + " ";
  }

  // Shared memory for images; invalid if the target is on a different host. Call this function once, before the first
  // image is sent.
  const Window& share(uint64_t bytes) {
    if (!local_) return window_;
    Window window = Window::create(bytes);
    FrameHeader header;
    header.generation = generation_;
    if (window.valid() && share_window(link_.get(), header, window)) window_ = std::move(window);
    return window_;
  }

  int fd() const { return link_.get(); }
  bool local() const { return local_; }
  // Makes send and receive throw PeerLost. Any thread may call this function.
  void cut() { shut_both(link_.get()); }

 private:
  Link link_;
  bool local_ = false;
  Window window_;
  uint32_t generation_ = 0;
  uint64_t sent_ = 0, received_ = 0;
};

// Limits the copying on this server to a quarter of a core, and the importing on the target to the same.
constexpr double kSleepPerWork = 3;
constexpr double kShortestSleep = 0.001;  // seconds; shorter sleeps are added up until they reach this length
constexpr double kLongestSleep = 0.2;     // seconds; a thread that must stop waits at most this long

inline double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Limits the CPU share of a thread that copies slots while the server serves requests.
class CopyThrottle {
 public:
  explicit CopyThrottle(const ServerState& state)
      : state_(state), requests_before_(requests()), cpu_before_(cpu_seconds()) {}

  // If requests arrived since the last sleep, sleeps in proportion to the CPU time used. Returns the seconds slept.
  double pause() {
    const double now = cpu_seconds(), sleep = std::min(kSleepPerWork * (now - cpu_before_), kLongestSleep);
    if (sleep < kShortestSleep) return 0;
    cpu_before_ = now;
    const uint64_t requests_now = requests();
    if (requests_now == requests_before_) return 0;
    requests_before_ = requests_now;
    std::this_thread::sleep_for(std::chrono::duration<double>(sleep));
    return sleep;
  }

 private:
  uint64_t requests() const { return state_.count.pulls + state_.count.pushes; }

  const ServerState& state_;
  uint64_t requests_before_;
  double cpu_before_;  // CPU seconds of this thread at the last pause
};

constexpr size_t kSlotsAhead = 16;          // most slots with an image in flight
constexpr uint64_t kBytesAhead = 64 << 20;  // most bytes of images that may be in flight
constexpr size_t kSlotsACut = 16;
constexpr uint64_t kRoom = 4 << 20;  // bytes of shared memory for one image; larger images go through the socket

class SlotStream : public NoCopy {
 public:
  struct Sent {
    uint16_t slot = 0;
    uint64_t cut = 0;  // the cut was made before the image, so the image may lack changes after it
    uint64_t bytes = 0;
  };

  SlotStream(ServerState& state, SlotTarget& to, std::vector<uint16_t> slots)
      : state_(state), to_(to), slots_(std::move(slots)), window_(to.share(kSlotsAhead * kRoom)) {
    for (const uint16_t slot : slots_) transfer_ids_.push_back(state.transfer_ids.at(slot));
    thread_ = std::thread([this] { send_all(); });
  }
  // Stops sending. If not all was sent, cuts the connection.
  ~SlotStream() {
    {
      const std::lock_guard hold(mutex_);
      over_ = true;
      if (!all_sent_) to_.cut();
    }
    room_.notify_all();
    thread_.join();
  }

  // Returns the image whose reply has arrived. Call this function once for each reply.
  Sent arrived() {
    const std::lock_guard hold(mutex_);
    if (under_way_.empty()) throw PeerLost("sent a reply without a request");
    const Sent oldest = under_way_.front();
    under_way_.pop_front();
    bytes_under_way_ -= oldest.bytes;
    room_.notify_all();
    return oldest;
  }
  // The number of sends that began, plus the number of sends that ended. The sum is odd while an image is being sent.
  uint64_t sends() const { return sends_; }
  // Rethrows the error that ended the thread.
  void rethrow() {
    const std::lock_guard hold(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void send_all() {
    try {
      ImageWriter image;
      CopyThrottle throttle(state_);
      uint64_t cut = 0;
      for (size_t i = 0; i < slots_.size(); ++i) {
        {
          std::unique_lock hold(mutex_);
          room_.wait(hold,
                     [&] { return over_ || (under_way_.size() < kSlotsAhead && bytes_under_way_ < kBytesAhead); });
          if (over_) return;
        }
        if (i % kSlotsACut == 0) cut = state_.store.cut();
        // The last image in this part of the window is acknowledged, because at most kSlotsAhead images are in flight.
        if (window_.valid()) {
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
      to_.cut();  // wakes the thread that waits for a reply
    }
  }

  ServerState& state_;
  SlotTarget& to_;
  const std::vector<uint16_t> slots_;
  std::vector<uint64_t> transfer_ids_;  // by position in slots_
  std::atomic<uint64_t> sends_{0};
  std::mutex mutex_;  // guards the members below
  std::condition_variable room_;
  std::deque<Sent> under_way_;
  uint64_t bytes_under_way_ = 0;
  const Window& window_;  // one part per image in flight
  bool over_ = false, all_sent_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace springtide
