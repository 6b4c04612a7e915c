// A parameter server: a Store behind a TCP port and a local socket with shared memory, one blocking thread
// per connection. Python starts, stops and observes it. Next: server/requests/request_handler.h.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "migrate/handover.h"
#include "server/requests/server_state.h"
#include "store/store.h"

namespace springtide {

class Connection;

class Server : public NoCopy {
 public:
  Server(Store& store, const ServerOptions& options);  // the store must outlive the server
  ~Server();                                           // stops immediately

  void start();  // throws PortTaken or BadInput
  const std::string& host() const { return state_.options.host; }
  uint16_t port() const { return port_; }
  // owners[slot] is the index of the server that owns the slot. Before the first call this server owns every slot.
  // Throws BadInput for a wrong number of slots, or for an epoch lower than the last.
  void set_placement(uint32_t epoch, std::span<const uint16_t> owners);
  // Updates which servers own the other slots; refusals name these owners. This server's slots stay the same.
  void learn_placement(uint32_t epoch, std::span<const uint16_t> owners,
                       const std::map<uint16_t, std::string>& addresses);
  HandoverOutcome hand_over(const HandoverOptions& to, std::span<const uint16_t> slots);
  bool let_go(uint16_t slot);     // ends a hand-over without confirmation: the target has the slot
  void take_no_more(bool yes);    // refuses slots from other servers from now on, because this server drains
  void expect_anew();             // refuses slots over connections that were opened before this call
  bool take_back(uint16_t slot);  // ends a hand-over without confirmation: the target is lost
  std::vector<uint16_t> owned() const;
  // bsp: the group restarts, and frames of older generations are refused from now on.
  void set_generation(uint32_t generation, uint32_t workers);
  ServerStats stats() const { return state_.stats(); }
  // Closes the listeners, and serves requests that have already arrived, for at most `drain_s` seconds. Idempotent.
  void stop(double drain_s);

 private:
  Welcome terms() const;
  void accept_loop();
  void admit(int listener, bool local);
  void reap();
  void signal();  // wakes the accept loop

  ServerState state_;
  Fd tcp_, local_, wake_;
  uint16_t port_ = 0;
  std::string local_name_;
  uint64_t instance_ = 0;  // see Welcome
  std::thread accepting_;
  std::mutex mutex_;  // guards connections_
  std::condition_variable ended_;
  std::list<Connection> connections_;
  bool stopped_ = false;
};

}  // namespace springtide
