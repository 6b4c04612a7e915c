// One request to all servers until every one of them has answered. A push that names its batches is sent
// again, to the slots' new owners and by their names, where a server has refused some of its slots. In: parts
// of a step. Out: the word that all servers have acknowledged it. Next: peer.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "remote_links.h"

namespace springtide {

class RemotePending final : public Pending {
 public:
  explicit RemotePending(std::shared_ptr<RemoteLinks> links) : links_(std::move(links)) {}
  ~RemotePending() override;

  void submit(Peer& peer, std::shared_ptr<Call> call);

  // A push: what it is made of, then where it goes.
  void keep(std::span<const Part> parts, const PushMeta& meta);
  std::vector<Slice> slices(size_t server) const { return slices_of(parts_, static_cast<uint16_t>(server)); }
  void push(size_t server);

  void wait() override;
  bool done() override;
  void lower_seen(std::span<uint64_t> by_server) const override;

 private:
  // Keys of some slots on their way to these slots' new owner. The gradients are copied: they lay elsewhere.
  struct Detour {
    Routed routed;
    std::vector<float> grads;
    std::vector<uint16_t> slots;
    Part part{};
  };
  struct Sent {
    Peer* peer;
    std::shared_ptr<Call> call;
    std::vector<Slice> slices;
    std::unique_ptr<Detour> detour;
  };

  std::shared_ptr<Call> push_call(const Peer& peer, std::span<const Slice> slices,
                                  std::span<const uint16_t> named, uint32_t epoch) const;
  // Waits for the calls from `begin` on; the refusals that can be sent again are left to the caller.
  std::vector<size_t> refused_from(size_t begin, std::exception_ptr& first);
  void send_again(std::span<const size_t> refused);
  void add_refused(const Sent& sent, const Placement& placement,
                   std::vector<std::unique_ptr<Detour>>& detours) const;

  std::shared_ptr<RemoteLinks> links_;
  std::vector<Part> parts_;
  PushMeta meta_;
  std::vector<HyperRecord> hypers_;
  std::vector<Sent> sent_;
};

}  // namespace springtide
