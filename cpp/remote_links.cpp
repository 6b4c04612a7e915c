#include "remote_links.h"

#include <unistd.h>

namespace springtide {

RemoteLinks::RemoteLinks(const RemoteOptions& o)
    : options(o), owner(getpid()), newest_(std::make_shared<const Placement>(o.placement)) {}

void RemoteLinks::check_process() const {
  if (getpid() != owner) {
    throw BadInput("connections to servers belong to process " + std::to_string(owner) +
                   "; a forked process (a data loader's worker) cannot use them");
  }
}

std::shared_ptr<Call> RemoteLinks::call_for(const Peer& peer, Kind kind) const {
  auto call = std::make_shared<Call>();
  call->header = peer.header(kind);
  call->timeout_s = options.request_timeout_s;
  return call;
}

std::shared_ptr<Call> RemoteLinks::ask(Peer& peer, Kind kind, std::vector<uint8_t> body,
                                       uint64_t step) const {
  auto call = call_for(peer, kind);
  call->header.step = step;
  compose_small(*call, std::move(body));
  peer.submit(call);
  peer.wait(*call);
  return call;
}

void RemoteLinks::reroute(Placement placement) {
  const std::lock_guard lock(mutex_);
  if (placement.epoch < newest_->epoch) {
    throw BadInput("placement epoch " + std::to_string(placement.epoch) + " is older than " +
                   std::to_string(newest_->epoch));
  }
  if (placement.server_of_slot.size() != newest_->server_of_slot.size()) {
    throw BadInput("a placement of " + std::to_string(placement.server_of_slot.size()) +
                   " slots for a job of " + std::to_string(newest_->server_of_slot.size()));
  }
  for (const uint16_t server : placement.server_of_slot) {
    if (server >= peers.size())
      throw BadInput("the placement names server " + std::to_string(server) + " of " +
                     std::to_string(peers.size()));
  }
  newest_ = std::make_shared<const Placement>(std::move(placement));
  rerouted_.notify_all();
}

std::shared_ptr<const Placement> RemoteLinks::placement_from(uint32_t epoch, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return newest_->epoch >= epoch; };
  return rerouted_.wait_until(lock, until, there) ? newest_ : nullptr;
}

}  // namespace springtide
