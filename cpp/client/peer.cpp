#include "client/peer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "net/frame_io.h"
#include "wire/wire.h"

namespace springtide {

namespace {

constexpr uint64_t kMostReplyBytes = 1ULL << 34;  // larger replies are invalid
constexpr uint64_t kReplyPiece = 1 << 20;
constexpr uint32_t kPrompt = 8;                         // after this many prompt waits in a row, more are expected
constexpr auto kLookUp = std::chrono::milliseconds(5);  // how often the idle receiver checks for replies
// After this long without calls, the receiver waits for the end of the connection.
constexpr auto kQuiet = std::chrono::milliseconds(50);

uint64_t ns_between(Clock::time_point a, Clock::time_point b) {
  return b <= a ? 0 : static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(b - a).count());
}

}  // namespace

std::string seconds(double s) {
  // Uses no C++ stream, because stream locales may be mixed up if a second C++ library (torch's) is in the process.
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", s);
  return text;
}

Peer::Peer(const RemoteOptions& options, uint16_t index, std::string host, uint16_t port,
           const std::shared_ptr<SharedWindow>& shared, std::optional<double> connect_s)
    : options_(options), index_(index), generation_(options.generation), host_(std::move(host)), port_(port) {
  if (index < options.lives.size()) life_ = options.lives[index];
  const Clock::time_point start = Clock::now();
  std::string last = "no answer";
  link_ = connect_until(start + seconds_of(connect_s.value_or(options.connect_timeout_s)), terms_, last);
  if (!link_) {
    throw PeerLost(name(), " did not come up within ", seconds(since(start)), " (", last, "); ", advice());
  }
  check_terms(terms_);
  if (shared && shared->window.valid()) {
    if (Fd local = connect_window(terms_, *shared)) {
      link_ = std::move(local);
      shared_ = shared;
    }
  }
  set_timeouts(link_.line(), 0, options.request_timeout_s);
  if (!shared_) tune_tcp(link_.get());
  close_in_children(link_.get());
  connected_ = last_reply_ = Clock::now();
  sender_ = std::thread([this] { send_loop(); });
  receiver_ = std::thread([this] { receive_loop(); });
}

Peer::~Peer() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    fail(name() + ": the connection was closed here");
  }
  sender_.join();
  receiver_.join();
  forget_in_children(link_.get());
}

Link Peer::connect_until(Clock::time_point deadline, Welcome& terms, std::string& last) const {
  do {
    std::string host;
    uint16_t port = 0;
    {
      const std::lock_guard lock(where_mutex_);
      host = host_, port = port_;
    }
    Fd fd = connect_tcp(host, port, deadline);
    if (fd) {
      Link link(std::move(fd));
      const double left = std::max(0.1, -since(deadline));
      try {
        link.begin({options_.tls, TlsSide::caller, "server", left});
        set_timeouts(link.line(), left, left);
        terms = offer_handshake(link.line(), options_.secret, header(Kind::hello));
        return link;
      } catch (const HandshakeRefused& e) {
        throw PeerLost(name(), " refused the connection: ", e.what());
      } catch (const PeerLost& e) {
        if (link.tls() != nullptr && link.tls()->refused()) {
          throw PeerLost(name(), " refused the connection: ", e.what());
        }
        last = e.what();
      }
    } else {
      last = std::strerror(errno);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  return Link();
}

void Peer::check_terms(const Welcome& terms) const {
  if (terms.server_index != index_) {
    throw PeerLost(name(), " says it is server ", terms.server_index, "; the list of addresses is old");
  }
  if (terms.slots != options_.placement.server_of_slot.size()) {
    throw BadInput(name(), " cuts its tables into ", terms.slots, " slots, this client into ",
                   options_.placement.server_of_slot.size(), "; both come from the job's settings");
  }
}

Fd Peer::connect_window(const Welcome& terms, const SharedWindow& shared) const {
  Fd local = connect_on_host(terms, options_.secret, header(Kind::hello), 5);
  return local && share_window(local.get(), header(Kind::window), shared.window) ? std::move(local) : Fd();
}

FrameHeader Peer::header(Kind kind) const {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(kind);
  header.generation = generation_;
  header.epoch = options_.placement.epoch;
  header.rank = options_.rank;
  header.incarnation = options_.incarnation;
  return header;
}

bool Peer::has_credit(const Call& call) const {
  if (awaiting_.empty()) return true;  // one request may always be sent, even if it is large
  return awaiting_.size() < terms_.credit_requests && bytes_under_way_ + call.out_bytes <= terms_.credit_bytes;
}

void Peer::submit(const std::shared_ptr<Call>& call) {
  if (call->header.body_bytes > terms_.max_frame_bytes) {
    throw BadInput("a ", name_of(static_cast<Kind>(call->header.kind)), " of ", call->header.body_bytes, " bytes to ",
                   name(), " is over its limit of ", terms_.max_frame_bytes, "; use smaller batches or more servers");
  }
  std::unique_lock lock(mutex_);
  const auto may_go = [&] { return !failed_.empty() || has_credit(*call); };
  if (!may_go()) receive_eagerly();
  call->sent = Clock::now();
  for (auto until = due(*call); !may_go() && until > Clock::now(); until = due(*call)) {
    moved_.wait_until(lock, until, may_go);
  }
  if (!may_go()) {
    fail(name() + " has answered nothing for " + seconds(call->timeout_s) + " while " +
         std::to_string(awaiting_.size()) + " requests wait; " + advice());
  }
  if (!failed_.empty()) throw PeerLost(failed_);
  call->header.request = next_request_++;
  seal(call->header);
  call->sent = Clock::now();
  call->frame = call->out;
  awaiting_.push_back(call);
  bytes_under_way_ += call->out_bytes;
  if (!broken_.empty()) return;  // the call is sent with the others when the connection is open again
  if (sending_) {
    queue_.push_back(call);
    return;
  }
  sending_ = true;
  ++call->busy;
  const Line line = link_.line();
  lock.unlock();
  // usually the kernel takes everything, so the sender thread need not wake up
  const Io io = send_some(line, call->out);
  lock.lock();
  --call->busy;
  moved_.notify_all();
  if (io != Io::ok) broke(name() + " is gone (" + describe(io, line) + "); " + advice());
  if (failed_.empty() && broken_.empty() && !call->out.empty()) queue_.push_front(call);
  if (queue_.empty()) {
    sending_ = false;
  } else {
    handed_over_ = true;
    to_send_.notify_one();
  }
}

void Peer::send_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    to_send_.wait(lock, [&] { return handed_over_ || closing_; });
    if (closing_) return;
    while (!queue_.empty()) {
      const std::shared_ptr<Call> call = queue_.front();
      queue_.pop_front();
      if (call->done) continue;
      ++call->busy;
      const Line line = link_.line();
      lock.unlock();
      const Io io = send_all(line, call->out);
      lock.lock();
      --call->busy;
      moved_.notify_all();
      if (io != Io::ok) broke(name() + " takes no more requests (" + describe(io, line) + "); " + advice());
    }
    handed_over_ = sending_ = false;
    moved_.notify_all();
  }
}

void Peer::finish(Call& call) {
  const Clock::time_point now = Clock::now();
  // If a call waits behind another request, this time is not network time.
  const uint64_t took = ns_between(std::max(call.sent, last_reply_), now);
  last_reply_ = now;
  stats_.sync_ns += took - std::min(took, call.answer.server_ns + call.answer.clock);
  stats_.step_wait_ns += call.answer.clock;
  bytes_under_way_ -= call.out_bytes;
  stats_.bytes_out += sizeof call.header + call.out_bytes;
  stats_.bytes_in += sizeof call.answer + call.in_bytes + call.reply.size();
  if (call.header.kind == static_cast<uint8_t>(Kind::pull)) {
    ++stats_.pulls;
    stats_.pulled_keys += call.header.keys;
    stats_.lookup_ns += call.answer.server_ns;
  } else if (call.header.kind == static_cast<uint8_t>(Kind::push)) {
    ++stats_.pushes;
    stats_.pushed_keys += call.header.keys;
    stats_.update_ns += call.answer.server_ns;
  }
  if (call.answer.status != static_cast<uint16_t>(Status::ok)) {
    try {
      call.error = failure_of(call);
    } catch (const PeerLost&) {
      call.error = std::current_exception();  // the refusal is malformed
    }
  }
  if (call.slots_left) call.error = std::make_exception_ptr(WrongOwner(name(), " gave slots away meanwhile"));
  call.answered = true;
  call.done = true;
  moved_.notify_all();
}

std::exception_ptr Peer::failure_of(const Call& call) const {
  const std::string said = text_of(call.reply);
  switch (static_cast<Status>(call.answer.status)) {
    case Status::non_finite:
      return std::make_exception_ptr(NonFinite(said));
    case Status::partly_applied:
      return std::make_exception_ptr(PartlyApplied(name(), ": ", said));
    case Status::stale_generation:
      return std::make_exception_ptr(GroupChanged(name(), ": ", said));
    case Status::bad_input:
      return std::make_exception_ptr(BadInput(name(), ": ", said));
    case Status::wrong_owner: {
      const Refusal refusal = decode_refusal(call.reply);
      std::string slots;
      for (size_t i = 0; i < refusal.slots.size() && i < 8; ++i) {
        slots += (i == 0 ? "" : ", ") + std::to_string(refusal.slots[i]);
      }
      const std::string why = concat(name(), " does not own ", refusal.slots.size(), " of the slots asked for (", slots,
                                     refusal.slots.size() > 8 ? ", ..." : "", "); its placement is of epoch ",
                                     call.answer.epoch, ", ours of ", call.header.epoch);
      return std::make_exception_ptr(Refused(why, refusal));
    }
    default:
      return std::make_exception_ptr(PeerLost(name(), ": ", said));
  }
}

void Peer::fail(const std::string& why) {
  if (failed_.empty()) {
    failed_ = why;
    shut_both(link_.get());
    for (const auto& call : awaiting_) {
      call->error = std::make_exception_ptr(PeerLost(why));
      call->done = true;
    }
    awaiting_.clear();
    queue_.clear();
  }
  moved_.notify_all();
  to_send_.notify_all();
  to_receive_.notify_all();
}

void Peer::fail_late(const Call& call) {
  fail(name() + " has not answered a " + name_of(static_cast<Kind>(call.header.kind)) + " of " +
       std::to_string(call.header.keys) + " keys for " + seconds(call.timeout_s) + "; " + advice());
}

Clock::time_point Peer::due(const Call& call) const {
  const auto due = call.sent + seconds_of(call.timeout_s);
  return broken_.empty() ? due : std::max(due, reopen_until_ + seconds_of(2));
}

void Peer::wait_done(std::unique_lock<std::mutex>& lock, Call& call, bool give_up) {
  const auto settled = [&] {
    if (give_up && !call.done && call.busy == 0 && !broken_.empty()) drop_pull(call);
    return call.done && call.busy == 0;
  };
  if (settled()) return;
  for (auto until = due(call); until > Clock::now(); until = due(call)) {  // a new connection extends the deadline
    if (moved_.wait_until(lock, until, settled)) return;
  }
  if (!call.done) fail_late(call);
  moved_.wait(lock, settled);  // the socket is shut down, so no thread will use the caller's memory for long
}

// The connection is broken, so no reply can arrive, and nobody needs the rows.
void Peer::drop_pull(Call& call) {
  std::erase_if(awaiting_, [&](const auto& other) { return other.get() == &call; });
  bytes_under_way_ -= call.out_bytes;
  call.error = std::make_exception_ptr(PeerLost(broken_));
  call.done = true;
  moved_.notify_all();
}

void Peer::wait(Call& call) {
  std::unique_lock lock(mutex_);
  const Clock::time_point start = Clock::now();
  receive_for(lock, call);
  wait_done(lock, call, false);
  stats_.wait_ns += ns_between(start, Clock::now());
  if (call.error) std::rethrow_exception(call.error);
}

void Peer::settle(Call& call) noexcept {
  std::unique_lock lock(mutex_);
  wait_done(lock, call, call.header.kind == static_cast<uint8_t>(Kind::pull));
}

bool Peer::done(const Call& call) {
  const std::lock_guard lock(mutex_);
  return call.done && call.busy == 0;
}

void Peer::add_to(RemoteStats& stats) const {
  const std::lock_guard lock(mutex_);
#define SPRINGTIDE_ADD(name) stats.name += stats_.name;
  SPRINGTIDE_REMOTE_STATS(SPRINGTIDE_ADD)
#undef SPRINGTIDE_ADD
  stats.transports.push_back(shared_ ? "shm" : "tcp");
}

std::string Peer::name() const {
  const std::lock_guard lock(where_mutex_);
  return concat("server ", index_, " (", host_, ":", port_, ")");
}

std::string Peer::advice() const {
  return concat("is it running? see logs/server-", index_, ".log, and check host, port and firewall");
}

// A receiver thread reads replies while the caller computes. If a caller sends and then waits immediately, several
// times in a row, it reads its replies itself, which saves a thread switch. The receiver then only checks for replies
// that nobody reads and replies that are overdue.
void Peer::receive_loop() {
  std::unique_lock lock(mutex_);
  while (failed_.empty() && !closing_) {
    if (!broken_.empty()) {
      if (!reopen(lock)) return;
    } else if (prompt_ >= kPrompt && awaiting_.empty()) {
      stand_by(lock);
    } else {
      receive_next(lock);
    }
  }
}

// Receives one reply and finishes the reply's call. The lock is released while the socket is read.
void Peer::receive_next(std::unique_lock<std::mutex>& lock) {
  const Line line = link_.line();
  lock.unlock();
  FrameHeader answer;
  const Io io = receive_all(line, &answer, sizeof answer);
  std::string why = io == Io::ok ? header_error(answer, kMostReplyBytes) : describe(io, line);
  lock.lock();
  // if `broken_` is set, the call of the reply may no longer exist
  if (closing_ || !failed_.empty() || !broken_.empty()) return;
  if (why.empty() && (awaiting_.empty() || awaiting_.front()->header.request != answer.request)) {
    why = "the server sent a reply without a request";
  }
  if (!why.empty()) {
    why = name() + " went away " + seconds(since(connected_)) + " after it was connected (" + why + "); " + advice();
    return io == Io::ok ? fail(why) : broke(why);
  }
  const std::shared_ptr<Call> call = awaiting_.front();
  ++call->busy;
  lock.unlock();
  const bool whole = receive_reply(line, *call, answer, why);
  lock.lock();
  --call->busy;
  if (!failed_.empty()) return moved_.notify_all();
  if (!whole) return broke(name() + " went away in the middle of a reply (" + why + "); " + advice());
  awaiting_.pop_front();
  finish(*call);
}

bool Peer::receive_reply(Line line, Call& call, const FrameHeader& answer, std::string& why) {
  call.answer = answer;
  const bool rows = answer.status == static_cast<uint16_t>(Status::ok) && call.in_bytes != 0;
  Io io = Io::ok;
  if (rows && (answer.flags & kInWindow) != 0) {
    if ((call.header.flags & kInWindow) == 0) {
      why = "it put rows into shared memory that this request does not use";
      return false;
    }
    for (const Call::Copy& copy : call.copies) std::memcpy(copy.to, copy.from, copy.bytes);
  } else if (rows) {
    if (answer.body_bytes != call.in_bytes + sizeof call.answer.server_ns || (answer.flags & kTimed) == 0) {
      why = concat(answer.body_bytes, " bytes for ", call.in_bytes, " bytes of rows");
      return false;
    }
    std::vector<iovec> in = call.in;
    in.push_back({&call.answer.server_ns, sizeof call.answer.server_ns});
    io = receive_all(line, in);
    call.slots_left = (call.answer.server_ns & kSlotsLeft) != 0;
    call.answer.server_ns &= ~kSlotsLeft;
  } else {
    // grows with the bytes that arrive, not with the size that the reply claims
    for (uint64_t have = 0; io == Io::ok && have < answer.body_bytes;) {
      const uint64_t more = std::min(answer.body_bytes - have, std::max(have, kReplyPiece));
      call.reply.resize(have + more);
      io = receive_all(line, call.reply.data() + have, more);
      have += more;
    }
  }
  if (io != Io::ok) why = describe(io, line);
  return io == Io::ok;
}

void Peer::receive_eagerly() {
  prompt_ = 0;
  if (standing_by_) to_receive_.notify_all();
}

void Peer::stand_by(std::unique_lock<std::mutex>& lock) {
  standing_by_ = true;
  while (prompt_ >= kPrompt && failed_.empty() && broken_.empty() && !closing_) {
    to_receive_.wait_for(lock, kLookUp);
    const Clock::time_point now = Clock::now();
    if (awaiting_.empty()) {
      if (now - last_reply_ > kQuiet) prompt_ = 0;
    } else if (now > due(*awaiting_.front())) {
      fail_late(*awaiting_.front());
    } else if (!reading_ && now - awaiting_.front()->sent > kLookUp) {
      prompt_ = 0;
    }
  }
  standing_by_ = false;
  moved_.wait(lock, [&] { return !reading_; });  // after a failure the socket is shut down, which ends the read
}

void Peer::receive_for(std::unique_lock<std::mutex>& lock, Call& call) {
  if (call.done || call.busy != 0) {
    prompt_ = 0;
    return;
  }
  if (prompt_ < kPrompt) ++prompt_;
  if (!standing_by_ || reading_) return;
  reading_ = true;
  while (!call.done && failed_.empty() && broken_.empty() && !closing_) receive_next(lock);
  reading_ = false;
  if (call.done && !call.error) ++stats_.read_by_caller;
  if (!awaiting_.empty()) receive_eagerly();
  moved_.notify_all();
}

}  // namespace springtide
