// A request to all servers. It ends when each server has answered. Keys of moved slots are sent again to the owner
// named in the refusal.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "client/remote_links.h"

namespace springtide {

// first pause between attempts, about the time in which a slot changes its owner
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(50);
constexpr size_t kShortPauses = 4;  // number of short pauses, because several slots of one request may be moving

class RemotePending final : public Pending {
 public:
  RemotePending(std::shared_ptr<RemoteLinks> links, Kind kind) : links_(std::move(links)), kind_(kind) {}
  ~RemotePending() override {
    if (getpid() != links_->owner) {
      static_cast<void>(new std::shared_ptr<RemoteLinks>(std::move(links_)));  // as in ~RemoteBackend
      return;
    }
    for (Sent& sent : sent_) sent.peer->settle(*sent.call);
  }

  void pull(std::span<const Part> parts, const PullMeta& meta) {
    parts_.assign(parts.begin(), parts.end());
    pull_ = meta;
    start();
  }
  void push(std::span<const Part> parts, const PushMeta& meta) {
    parts_.assign(parts.begin(), parts.end());
    meta_ = meta;
    start();
  }
  // Sends a call that other code has made; wait() waits for the reply.
  void submit(Peer& peer, std::shared_ptr<Call> call) {
    peer.submit(call);
    sent_.push_back({&peer, std::move(call), {}, nullptr});
  }
  // Sends one frame, by the current placement.
  void assign(const Slice& slice, uint16_t server, bool keep) {
    keep_ = keep;
    const auto routes = links_->routes();
    if (slice.part->routed->version == routes->placement.version) {
      return send(*routes, server, {slice}, nullptr, {});
    }
    Detours detours;
    detour(*routes, slice, {}, detours);
    send(*routes, std::move(detours));
  }

  void wait() override {
    links_->check_process();
    std::exception_ptr first;
    Clock::time_point until{};
    Clock::duration pause = kFirstPause;
    for (size_t begin = 0, round = 0; begin < sent_.size(); ++round) {
      const size_t end = sent_.size();
      const std::vector<size_t> refused = refused_from(begin, first);
      begin = end;
      if (refused.empty() || first) continue;
      if (round == 0) until = Clock::now() + seconds_of(links_->options.follow_s());
      if (Clock::now() > until) std::rethrow_exception(sent_[refused.front()].call->error);
      const uint64_t version = links_->routes()->placement.version;
      // the slot has no owner at the moment, or moves faster than this client can follow
      if (!follow(refused) || round > 1) {
        links_->wait_for_news(version, pause);
        if (round > kShortPauses) pause = std::min<Clock::duration>(2 * pause, kLongestPause);
      }
      send_again(refused);
    }
    if (first) std::rethrow_exception(first);
    bring_home();
  }
  bool done() override {
    return std::all_of(sent_.begin(), sent_.end(), [](Sent& sent) { return sent.peer->done(*sent.call); });
  }
  void lower_seen(std::span<uint64_t> by_server) const override {
    for (const Sent& sent : sent_) {
      if (sent.peer->index() >= by_server.size() || sent.call->error) continue;
      uint64_t& seen = by_server[sent.peer->index()];
      seen = std::min(seen, sent.call->answer.step);
    }
  }

 private:
  // Keys that go to a different server than planned. The floats of these keys are copied, because they are not
  // contiguous in the caller's memory.
  struct Detour {
    Routed routed;
    std::vector<float> floats;
    std::vector<uint16_t> slots;                    // push: slots that the push covers
    std::vector<std::pair<float*, uint32_t>> home;  // pull: final destination of each row, and its number of floats
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
  // All keys of a slot must go to one server in one frame. If a part was planned with an older placement, it is planned
  // again.
  void start() {
    const auto routes = links_->routes();
    const uint64_t version = routes->placement.version;
    const bool planned = std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      return part.routed->keys.empty() || part.routed->version == version;
    });
    // A push that trains batches covers every slot of every server, even slots without keys.
    const bool everywhere = meta_.bsp || by_name();
    const bool named = by_name() && routes->must_name();
    if (!planned) {
      Detours detours;
      for (const Part& part : parts_) {
        detour(*routes, {&part, 0, static_cast<uint32_t>(part.routed->keys.size())}, {}, detours);
      }
      for (size_t s = 0; everywhere && s < routes->slots_of.size(); ++s) {
        if (!routes->slots_of[s].empty()) of(detours, static_cast<uint16_t>(s)).slots = routes->slots_of[s];
      }
      return send(*routes, std::move(detours));
    }
    for (size_t s = 0; s < routes->slots_of.size(); ++s) {
      const auto server = static_cast<uint16_t>(s);
      std::vector<Slice> own = slices_of(parts_, server);
      if (own.empty() && !(everywhere && !routes->slots_of[s].empty())) continue;
      send(*routes, server, std::move(own), nullptr,
           named ? std::span<const uint16_t>(routes->slots_of[s]) : std::span<const uint16_t>());
    }
  }
  void send(const Routes& routes, uint16_t server, std::vector<Slice> slices, std::unique_ptr<Detour> detour,
            std::span<const uint16_t> named) {
    Peer& peer = links_->peer(server);
    auto call = links_->call_for(peer, kind_);
    FrameHeader& header = call->header;
    header.epoch = routes.placement.epoch;
    if (kind_ == Kind::pull) {
      header.step = pull_.after_step;
      if (pull_.after_step != 0) call->timeout_s += static_cast<double>(peer.terms().step_wait_ms) / 1000;
    } else if (kind_ == Kind::push) {
      header.step = meta_.step;
      header.clock = meta_.clock;
      header.flags = static_cast<uint8_t>((meta_.bsp ? kBsp : 0) | (meta_.unique ? kUnique : 0) |
                                          (named.empty() ? 0 : kNamesSlots));
      // A detour goes to another server, so meta_.seen does not apply to its push count.
      if (!detour && server < meta_.seen.size() && meta_.seen[server] != kNotSeen) {
        header.flags |= kSeen;
        header.server_ns = meta_.seen[server];
      }
    } else if (keep_) {
      header.flags = kKeep;
    }
    compose(*call, slices, {meta_.batches, meta_.hyper, named}, peer.shared());
    peer.submit(call);
    sent_.push_back({&peer, std::move(call), std::move(slices), std::move(detour)});
  }
  void send(const Routes& routes, Detours detours) {
    for (size_t server = 0; server < detours.size(); ++server) {
      if (!detours[server]) continue;
      std::unique_ptr<Detour> one = std::move(detours[server]);
      one->routed.server_begin = {0, static_cast<uint32_t>(one->routed.keys.size())};
      one->part = {&one->routed, one->floats.data()};
      std::sort(one->slots.begin(), one->slots.end());
      one->slots.erase(std::unique(one->slots.begin(), one->slots.end()), one->slots.end());
      std::vector<Slice> slices = slices_of(std::span<const Part>(&one->part, 1), 0);
      const std::vector<uint16_t> named = by_name() ? one->slots : std::vector<uint16_t>();
      send(routes, static_cast<uint16_t>(server), std::move(slices), std::move(one), named);
    }
  }
  // Adds the keys of a slice to the detours to the servers that own the keys' slots. `wanted` is a mask of slots; empty
  // means all slots.
  void detour(const Routes& routes, const Slice& slice, std::span<const uint8_t> wanted, Detours& detours) const {
    const Routed& from = *slice.part->routed;
    const auto& server_of = routes.placement.server_of_slot;
    for (uint32_t i = slice.begin; i < slice.end; ++i) {
      const uint32_t slot = slot_of(hash_key(from.tables[i], from.keys[i]), static_cast<uint32_t>(server_of.size()));
      if (!wanted.empty() && wanted[slot] == 0) continue;
      Detour& to = of(detours, server_of[slot]);
      float* row = slice.part->rows + from.row_offset[i];
      const uint32_t floats = from.row_offset[i + 1] - from.row_offset[i];
      to.floats.insert(to.floats.end(), row, row + floats);
      if (kind_ == Kind::pull) to.home.emplace_back(row, floats);
      to.routed.tables.push_back(from.tables[i]);
      to.routed.keys.push_back(from.keys[i]);
      to.routed.row_offset.push_back(static_cast<uint32_t>(to.floats.size()));
      if (to.slots.empty() || to.slots.back() != slot) to.slots.push_back(static_cast<uint16_t>(slot));
    }
  }
  static Detour& of(Detours& detours, uint16_t server) {
    if (detours.size() <= server) detours.resize(server + size_t{1});
    if (!detours[server]) {
      detours[server] = std::make_unique<Detour>();
      detours[server]->routed.row_offset = {0};
    }
    return *detours[server];
  }
  // Waits for all calls from `begin` on, even after an error, because the caller may reuse its memory after wait().
  // Returns the calls that were refused and can be sent again.
  std::vector<size_t> refused_from(size_t begin, std::exception_ptr& first) {
    std::vector<size_t> refused;
    for (size_t i = begin; i < sent_.size(); ++i) {
      try {
        sent_[i].peer->wait(*sent_[i].call);
      } catch (const WrongOwner&) {
        if (!meta_.bsp && pull_.after_step == 0) {  // slots of a bsp job do not move during a step
          refused.push_back(i);
        } else if (!first) {
          first = std::current_exception();
        }
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    return refused;
  }
  bool follow(std::span<const size_t> refused) {
    bool told = true;
    for (const size_t i : refused) {
      const Call& call = *sent_[i].call;
      told = !call.reply.empty() && links_->follow(decode_refusal(call.reply)) && told;
    }
    return told;
  }
  void send_again(std::span<const size_t> refused) {
    const auto routes = links_->routes();
    const auto& server_of = routes->placement.server_of_slot;
    Detours detours;
    for (const size_t i : refused) {
      const Call& call = *sent_[i].call;
      std::vector<uint8_t> wanted;
      if (kind_ != Kind::pull) {  // the server has applied all other slots; a pull that was refused returned no rows
        wanted.resize(server_of.size(), 0);
        for (const uint16_t slot : decode_refusal(call.reply).slots) {
          if (slot >= wanted.size()) throw PeerLost("a server refused a slot that does not exist");
          wanted[slot] = 1;
          if (by_name()) of(detours, server_of[slot]).slots.push_back(slot);
        }
      }
      for (const Slice& slice : sent_[i].slices) detour(*routes, slice, wanted, detours);
    }
    send(*routes, std::move(detours));
  }
  // Goes in reverse order, because a detour of a detour is copied to the memory of the earlier detour.
  void bring_home() {
    for (size_t i = sent_.size(); i-- > 0;) {
      if (!sent_[i].detour || sent_[i].detour->home.empty()) continue;
      const Detour& detour = *sent_[i].detour;
      const float* row = detour.floats.data();
      for (const auto& [to, floats] : detour.home) {
        std::memcpy(to, row, floats * sizeof(float));
        row += floats;
      }
      sent_[i].detour->home.clear();
    }
  }

  std::shared_ptr<RemoteLinks> links_;
  Kind kind_;
  std::vector<Part> parts_;
  PullMeta pull_;
  PushMeta meta_;
  bool keep_ = false;  // assign
  std::vector<Sent> sent_;
};

}  // namespace springtide
