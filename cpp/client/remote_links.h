// State that all requests of one client share: a connection per server, the shared window, and the current placement.
// Next: remote_pending.h (one request), peer.h (one connection).
#pragma once

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/peer.h"
#include "client/remote_backend.h"
#include "wire/wire.h"

namespace springtide {

// Address space of the shared window. A frame that does not fit goes over the socket. ThreadSanitizer leaves little
// address space on ARM.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kWindowBytes = 1ULL << 30;
#else
constexpr uint64_t kWindowBytes = 8ULL << 30;
#endif

// The server that a refusal names may already be dead, and restarted elsewhere. With a short timeout, the client soon
// looks for its address again.
constexpr double kReachS = 1.0;

// A placement, and the data that requests derive from it.
struct Routes {
  Placement placement;
  std::vector<std::vector<uint16_t>> slots_of;  // by server
  // Until slots move for the first time, servers know from the epoch which slots a push covers.
  bool must_name() const { return placement.version != 0 || placement.epoch > 1; }
};

inline std::shared_ptr<const Routes> routes_by(Placement placement) {
  auto routes = std::make_shared<Routes>();
  routes->slots_of.resize(placement.servers);
  for (size_t slot = 0; slot < placement.server_of_slot.size(); ++slot)
    routes->slots_of.at(placement.server_of_slot[slot]).push_back(static_cast<uint16_t>(slot));
  routes->placement = std::move(placement);
  return routes;
}

struct RemoteLinks {
  explicit RemoteLinks(const RemoteOptions& o) : options(o), owner(getpid()), generation_(o.generation) {
    const size_t servers = o.hosts.size();
    throw_if<BadInput>(servers == 0 || servers != o.ports.size() || servers != o.placement.servers, "a client of ",
                       o.placement.servers, " servers got ", servers, " hosts and ", o.ports.size(), " ports");
    for (const uint16_t server : o.placement.server_of_slot) {
      if (server >= servers || o.hosts[server].empty())
        throw BadInput("the placement names server ", server, " of ", servers);
    }
    if (options.shared_memory) shared = std::make_shared<SharedWindow>(kWindowBytes);
    routes_ = routes_by(options.placement);
    for (size_t i = 0; i < servers; ++i) {
      // A server that has left has no address, and a server without slots may not have started yet.
      const bool needed = !o.hosts[i].empty() && (servers == 1 || !routes_->slots_of[i].empty());
      peers_.push_back(
          needed ? std::make_shared<Peer>(options, static_cast<uint16_t>(i), o.hosts[i], o.ports[i], shared) : nullptr);
    }
  }

  // BadInput in a forked child
  void check_process() const {
    throw_if<BadInput>(getpid() != owner, "connections to servers belong to process ", owner,
                       "; a forked process (a data loader's worker) cannot use them");
  }
  std::shared_ptr<Call> call_for(const Peer& peer, Kind kind) const {
    auto call = std::make_shared<Call>();
    call->header = peer.header(kind);
    call->timeout_s = options.request_timeout_s;
    return call;
  }
  // Sends a request to one server and waits for the reply. Only requests outside of training steps use this function.
  std::shared_ptr<Call> ask(Peer& peer, Kind kind, std::vector<uint8_t> body, uint64_t step) const {
    auto call = call_for(peer, kind);
    call->header.step = step;
    compose_small(*call, std::move(body));
    peer.submit(call);
    peer.wait(*call);
    return call;
  }

  // The reference stays valid, because an index belongs to the same server during the whole job.
  Peer& peer(size_t server) const {
    if (Peer* found = find(server)) return *found;
    throw PeerLost("server ", server, " is not known here");
  }
  // Returns null if this client has never needed the server.
  Peer* find(size_t server) const {
    const std::lock_guard lock(mutex_);
    return server < peers_.size() ? peers_[server].get() : nullptr;
  }
  // Returns the servers that have slots.
  std::vector<Peer*> peers() const {
    const std::lock_guard lock(mutex_);
    std::vector<Peer*> found;
    for (size_t i = 0; i < peers_.size(); ++i) {
      const bool used = peers_.size() == 1 || (i < routes_->slots_of.size() && !routes_->slots_of[i].empty());
      if (peers_[i] && used) found.push_back(peers_[i].get());
    }
    return found;
  }
  std::shared_ptr<const Routes> routes() const {
    const std::lock_guard lock(mutex_);
    return routes_;
  }

  // Declares tables on all servers, including servers that join later. Returns the highest age clock of the servers.
  uint64_t declare(std::span<const TableSpec> tables) {
    {
      const std::lock_guard lock(mutex_);
      for (const TableSpec& spec : tables) {
        const auto same = [&](const TableSpec& known) { return known.id == spec.id; };
        if (std::none_of(declared_.begin(), declared_.end(), same)) declared_.push_back(spec);
      }
    }
    uint64_t age = 0;
    for (Peer* each : peers()) age = std::max(age, ask(*each, Kind::declare, encode_tables(tables), 0)->answer.step);
    return age;
  }
  // Throws BadInput if the placement is older, has another number of slots, or names an unknown server without an
  // address.
  void reroute(Placement placement, const std::map<uint16_t, std::string>& addresses) {
    const auto now = routes();
    if (placement.epoch < now->placement.epoch) {
      throw BadInput("placement epoch ", placement.epoch, " is older than ", now->placement.epoch);
    }
    if (placement.server_of_slot.size() != now->placement.server_of_slot.size()) {
      throw BadInput("a placement of ", placement.server_of_slot.size(), " slots for a job of ",
                     now->placement.server_of_slot.size());
    }
    std::vector<uint8_t> used(UINT16_MAX + 1, 0);
    for (const uint16_t server : placement.server_of_slot) used[server] = 1;
    for (const auto& [server, address] : addresses) {
      throw_if<PeerLost>(used[server] != 0 && !reach(server, address), "server ", server, " at ", address,
                         " cannot be reached");
    }
    const std::lock_guard lock(mutex_);
    for (const uint16_t server : placement.server_of_slot) {
      if (server >= peers_.size() || !peers_[server])
        throw BadInput("the placement names server ", server, " of ", peers_.size());
    }
    put(std::move(placement));
  }
  // Learns the new owners of slots from a refusal. Returns true if the client now knows all owners.
  bool follow(const Refusal& refusal) {
    bool all = true;
    for (const auto& [server, address] : refusal.addresses) all = reach(server, address) && all;
    const std::lock_guard lock(mutex_);
    Placement placement = routes_->placement;
    const size_t slots = placement.server_of_slot.size();
    for (size_t i = 0; i < refusal.slots.size(); ++i) {
      const uint16_t slot = refusal.slots[i], to = refusal.owners[i];
      if (slot >= slots) throw PeerLost("a server refused a slot that does not exist");
      if (to < peers_.size() && peers_[to]) {
        placement.server_of_slot[slot] = to;
      } else {
        all = false;
      }
    }
    if (placement.server_of_slot != routes_->placement.server_of_slot) put(std::move(placement));
    return all;
  }
  // Sets the generation for all servers, including servers that join later.
  void set_generation(uint32_t generation) {
    const std::lock_guard lock(mutex_);
    generation_ = generation;
    for (const auto& peer : peers_) {
      if (peer) peer->set_generation(generation);
    }
  }
  // Waits until the placement has changed.
  void wait_for_news(uint64_t version, Clock::duration most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [&] { return routes_->placement.version != version; });
  }
  void add_to(RemoteStats& stats) const {
    const std::lock_guard lock(mutex_);
    for (const auto& peer : peers_) {
      if (peer) peer->add_to(stats);
    }
  }

  const RemoteOptions options;  // its placement is the initial one
  const pid_t owner;
  std::shared_ptr<SharedWindow> shared;

 private:
  // Returns false if the server cannot be reached now.
  bool reach(uint16_t server, const std::string& address) {
    const std::lock_guard one(reaching_);
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) return false;
    std::string host = address.substr(0, colon);
    if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    uint16_t port = 0;
    const char* const end = address.data() + address.size();
    if (const auto [read, error] = std::from_chars(address.data() + colon + 1, end, port); read != end) return false;
    std::vector<TableSpec> declared;
    uint32_t generation = 0;
    {
      const std::lock_guard lock(mutex_);
      // The master will announce the address of the server's next incarnation.
      if (server < peers_.size() && peers_[server]) return true;
      declared = declared_;
      generation = generation_;
    }
    try {
      auto fresh = std::make_shared<Peer>(options, server, host, port, shared, kReachS);
      fresh->set_generation(generation);
      fresh->wait_for_next_life(false);  // nothing can announce the address before the peer is in peers_
      if (!declared.empty()) ask(*fresh, Kind::declare, encode_tables(declared), 0);
      const std::lock_guard lock(mutex_);
      if (!fresh->wait_for_next_life(true)) return false;
      fresh->set_generation(generation_);
      if (peers_.size() <= server) peers_.resize(server + size_t{1});
      peers_[server] = std::move(fresh);
      Placement placement = routes_->placement;
      if (placement.servers < peers_.size()) put(std::move(placement));
    } catch (const PeerLost&) {
      return false;
    }
    return true;
  }
  void put(Placement placement) {
    const bool same = placement.server_of_slot == routes_->placement.server_of_slot;
    placement.servers = static_cast<uint16_t>(peers_.size());
    placement.version = routes_->placement.version + (same && placement.servers == routes_->placement.servers ? 0 : 1);
    routes_ = routes_by(std::move(placement));
    changed_.notify_all();
  }

  std::mutex reaching_;  // one new connection at a time
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Routes> routes_;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::vector<TableSpec> declared_;
  uint32_t generation_;
};

}  // namespace springtide
