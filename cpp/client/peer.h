// A client's connection to one server. A peer sends requests and receives replies in order, while the caller computes.
// A broken connection is reopened, to the server or its restarted successor, and unanswered requests are sent again
// (peer_reopen.cpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "client/call.h"
#include "client/remote_backend.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "net/tls_session.h"

namespace springtide {

std::string seconds(double s);  // for messages

class Peer {
 public:
  // Connects within `connect_s` seconds, or within the time in the options. `shared`: use this window if the server is
  // on this host.
  Peer(const RemoteOptions& options, uint16_t index, std::string host, uint16_t port,
       const std::shared_ptr<SharedWindow>& shared, std::optional<double> connect_s = {});
  ~Peer();  // calls that are still in flight fail

  void submit(const std::shared_ptr<Call>& call);  // waits only if the client has used up the server's credits
  void wait(Call& call);                           // waits for the reply; throws the call's error
  // Waits until nothing uses the caller's memory any more. If the server is lost, a pull is given up.
  void settle(Call& call) noexcept;
  bool done(const Call& call);
  void move_to(uint32_t life, const std::string& host, uint16_t port);  // see RemoteBackend::readdress
  // Sets whether this peer waits for the restart of a lost server. Returns false if the server is lost already.
  bool wait_for_next_life(bool wait);
  FrameHeader header(Kind kind) const;  // with this client's identity

  uint16_t index() const { return index_; }
  void set_generation(uint32_t generation) { generation_ = generation; }
  const Welcome& terms() const { return terms_; }
  const std::shared_ptr<SharedWindow>& shared() const { return shared_; }
  void add_to(RemoteStats& stats) const;

 private:
  // Returns an invalid link if it could not connect in time.
  Link connect_until(Clock::time_point deadline, Welcome& terms, std::string& last) const;
  // Returns a connection that uses the shared window, after the server has accepted the window. Returns an invalid Fd
  // if the server is on a different host.
  Fd connect_window(const Welcome& terms, const SharedWindow& shared) const;
  void check_terms(const Welcome& terms) const;
  void send_loop();
  void receive_loop();
  static bool receive_reply(Line line, Call& call, const FrameHeader& answer, std::string& why);
  // The caller holds the lock during the functions below.
  void receive_next(std::unique_lock<std::mutex>& lock);
  void stand_by(std::unique_lock<std::mutex>& lock);
  void receive_for(std::unique_lock<std::mutex>& lock, Call& call);
  void receive_eagerly();  // the receiving thread reads replies, even if no caller waits
  void fail_late(const Call& call);
  Clock::time_point due(const Call& call) const;
  void finish(Call& call);
  void fail(const std::string& why);   // for good
  void broke(const std::string& why);  // the failure is permanent only if the connection cannot be reopened
  bool reopen(std::unique_lock<std::mutex>& lock);
  enum class Found { good, other, stale };
  Found judge(const Welcome& terms) const;
  void take_over(Link fresh, const Welcome& terms);
  void drop_unrepeatable();
  void send_again();
  bool has_credit(const Call& call) const;
  std::exception_ptr failure_of(const Call& call) const;
  void wait_done(std::unique_lock<std::mutex>& lock, Call& call, bool give_up);
  void drop_pull(Call& call);
  std::string name() const;
  std::string advice() const;

  const RemoteOptions& options_;
  const uint16_t index_;
  std::atomic<uint32_t> generation_{0};
  mutable std::mutex where_mutex_;  // guards the next two
  std::string host_;
  uint16_t port_;
  Link link_;
  Welcome terms_;
  std::shared_ptr<SharedWindow> shared_;
  Clock::time_point connected_{};

  mutable std::mutex mutex_;
  std::condition_variable moved_;               // signals that a call has ended or credit has returned
  std::condition_variable to_send_;             // the sender has work
  std::condition_variable to_receive_;          // the receiver has to read again
  std::deque<std::shared_ptr<Call>> queue_;     // calls that are not sent completely
  std::deque<std::shared_ptr<Call>> awaiting_;  // calls without a reply, in order
  uint64_t bytes_under_way_ = 0;
  uint64_t next_request_ = 1;
  bool sending_ = false;      // a thread has the right to write to the socket
  bool handed_over_ = false;  // true while the sender thread holds the lock
  uint32_t prompt_ = 0;       // number of waits in a row that began before their reply had arrived
  bool standing_by_ = false;  // true if the receiving thread leaves replies to the callers that wait
  bool reading_ = false;      // a waiting caller reads the socket
  bool closing_ = false;
  std::string failed_;
  std::string broken_;       // reason why the connection is being reopened
  uint32_t life_ = 0;        // incarnation of the server at the connected address
  bool moved_here_ = false;  // true if move_to() named an incarnation that is not connected yet
  bool patient_ = true;
  // True if move_to() named the address that is already connected, with this or an earlier incarnation.
  bool same_place_ = false;
  Clock::time_point reopen_until_{};
  Clock::time_point last_reply_{};
  RemoteStats stats_;
  std::thread sender_, receiver_;
};

}  // namespace springtide
