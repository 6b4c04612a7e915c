// One request to all servers until each has answered. Keys of slots that have moved are sent again to the
// owner that the refusal names. Next: peer.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "client/remote_links.h"

namespace springtide {

class RemotePending final : public Pending {
 public:
  RemotePending(std::shared_ptr<RemoteLinks> links, Kind kind) : links_(std::move(links)), kind_(kind) {}
  ~RemotePending() override;

  void pull(std::span<const Part> parts, const PullMeta& meta);
  void push(std::span<const Part> parts, const PushMeta& meta);
  void submit(Peer& peer, std::shared_ptr<Call> call);          // made elsewhere, to be waited for
  void assign(const Slice& slice, uint16_t server, bool keep);  // one frame's worth, by the present map

  void wait() override;
  bool done() override;
  void lower_seen(std::span<uint64_t> by_server) const override;

 private:
  // Keys on their way to another server than their plan says. Floats are copied: they lay elsewhere.
  struct Detour {
    Routed routed;
    std::vector<float> floats;
    std::vector<uint16_t> slots;                    // push: it speaks for these
    std::vector<std::pair<float*, uint32_t>> home;  // pull: where each row goes in the end, and its floats
    Part part{};
  };
  using Detours = std::vector<std::unique_ptr<Detour>>;  // by server
  struct Sent {
    Peer* peer;
    std::shared_ptr<Call> call;
    std::vector<Slice> slices;
    std::unique_ptr<Detour> detour;
  };

  bool by_name() const { return kind_ == Kind::push && !meta_.bsp && !meta_.batches.empty(); }
  void start();
  void send(const Routes& routes, uint16_t server, std::vector<Slice> slices, std::unique_ptr<Detour> detour,
            std::span<const uint16_t> named);
  void send(const Routes& routes, Detours detours);
  // Keys [begin, end) of a part, those of wanted slots (all when it is empty), to the servers of their slots.
  void detour(const Routes& routes, const Slice& slice, std::span<const uint8_t> wanted, Detours& detours) const;
  static Detour& of(Detours& detours, uint16_t server);
  // Waits for the calls from `begin` on; the refusals that can be sent again are left to the caller.
  std::vector<size_t> refused_from(size_t begin, std::exception_ptr& first);
  bool follow(std::span<const size_t> refused);
  void send_again(std::span<const size_t> refused);
  void bring_home();

  std::shared_ptr<RemoteLinks> links_;
  Kind kind_;
  std::vector<Part> parts_;
  PullMeta pull_;
  PushMeta meta_;
  bool keep_ = false;  // assign
  std::vector<HyperRecord> hypers_;
  std::vector<Sent> sent_;
};

}  // namespace springtide
