// A parameter server: a Store behind a TCP port (and a local socket with shared memory), one blocking thread
// a connection. Python only starts, stops and watches it. Requests are served in request_handler.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "migrate/handover.h"
#include "server/requests/server_options.h"
#include "store/store.h"

namespace springtide {

class Server {
 public:
  Server(Store& store, const ServerOptions& options);  // the store must outlive it
  ~Server();                                           // stops at once
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();  // PortTaken, BadInput
  std::string host() const;
  uint16_t port() const;
  // owners[slot] is the server that has the slot; those of this server's index are its own. Until the first
  // call it takes every slot for its own. BadInput for another number of slots, or an epoch lower than the
  // last.
  void set_placement(uint32_t epoch, const std::vector<uint16_t>& owners);
  // Who has the slots that are not this server's, for those it refuses. Its own slots stay as they are.
  void learn_placement(uint32_t epoch, const std::vector<uint16_t>& owners,
                       const std::map<uint16_t, std::string>& addresses);
  // Gives slots to another server while both serve (handover.h).
  HandoverOutcome hand_over(const HandoverOptions& to, std::span<const uint16_t> slots);
  bool let_go(uint32_t slot);     // after a hand-over in doubt, whose target is known to have the slot
  void take_no_more(bool yes);    // before it leaves: slots that are given from now on are refused
  void expect_anew();             // refuses slots over connections that were made before
  bool take_back(uint32_t slot);  // after a hand-over in doubt, whose target is known to be lost
  std::vector<uint16_t> owned() const;
  // bsp: the group goes back; frames of an older generation are refused from now on.
  void set_generation(uint32_t generation, uint32_t workers);
  ServerStats stats() const;
  // No new connections; requests that have arrived are answered, for `drain_s` at most. Twice is fine.
  void stop(double drain_s);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace springtide
