#include "remote_pending.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "hash.h"

namespace springtide {
namespace {

std::vector<uint16_t> slots_in(const Call& refusal) {
  std::vector<uint16_t> slots(refusal.reply.size() / sizeof(uint16_t));
  if (!slots.empty()) std::memcpy(slots.data(), refusal.reply.data(), slots.size() * sizeof(uint16_t));
  return slots;
}

}  // namespace

RemotePending::~RemotePending() {
  if (getpid() != links_->owner) {
    static_cast<void>(new std::shared_ptr<RemoteLinks>(std::move(links_)));  // as in ~RemoteBackend
    return;
  }
  for (Sent& sent : sent_) sent.peer->settle(*sent.call);
}

void RemotePending::submit(Peer& peer, std::shared_ptr<Call> call) {
  peer.submit(call);
  sent_.push_back({&peer, std::move(call), {}, nullptr});
}

void RemotePending::keep(std::span<const Part> parts, const PushMeta& meta) {
  parts_.assign(parts.begin(), parts.end());
  meta_ = meta;
  for (const auto& [table, hyper] : meta.hyper) {
    hypers_.push_back(
        {.table = table, .lr = hyper.lr, .weight_decay = hyper.weight_decay, .step = hyper.step});
  }
}

std::shared_ptr<Call> RemotePending::push_call(const Peer& peer, std::span<const Slice> slices,
                                               std::span<const uint16_t> named, uint32_t epoch) const {
  auto call = links_->call_for(peer, Kind::push);
  call->header.step = meta_.step;
  call->header.clock = meta_.clock;
  call->header.epoch = epoch;
  call->header.flags = static_cast<uint8_t>((meta_.bsp ? kBsp : 0) | (meta_.unique ? kUnique : 0) |
                                            (named.empty() ? 0 : kNamesSlots));
  // A part that is sent again goes to a server whose count is another.
  if (named.empty() && peer.index() < meta_.seen.size() && meta_.seen[peer.index()] != kNotSeen) {
    call->header.flags |= kSeen;
    call->header.server_ns = meta_.seen[peer.index()];
  }
  compose(*call, slices, {meta_.batches, hypers_, named}, peer.shared());
  return call;
}

void RemotePending::push(size_t server) {
  Peer& peer = *links_->peers[server];
  std::vector<Slice> own = slices(server);
  auto call = push_call(peer, own, {}, links_->options.placement.epoch);
  peer.submit(call);
  sent_.push_back({&peer, std::move(call), std::move(own), nullptr});
}

void RemotePending::wait() {
  links_->check_process();
  std::exception_ptr first;
  size_t begin = 0;
  while (begin < sent_.size()) {
    const size_t end = sent_.size();
    const std::vector<size_t> refused = refused_from(begin, first);
    begin = end;
    if (!refused.empty() && !first) send_again(refused);
  }
  if (first) std::rethrow_exception(first);
}

// All of them, also after an error: the caller's memory is free again after wait().
std::vector<size_t> RemotePending::refused_from(size_t begin, std::exception_ptr& first) {
  std::vector<size_t> refused;
  for (size_t i = begin; i < sent_.size(); ++i) {
    try {
      sent_[i].peer->wait(*sent_[i].call);
    } catch (const WrongOwner&) {
      const bool by_name = !meta_.bsp && !meta_.batches.empty();
      if (by_name) {
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

void RemotePending::send_again(std::span<const size_t> refused) {
  uint32_t epoch = 0;
  for (const size_t i : refused) {
    const Call& call = *sent_[i].call;
    epoch = std::max({epoch, call.answer.epoch, call.header.epoch + 1});  // ours was not good enough
  }
  const auto placement =
      links_->placement_from(epoch, Clock::now() + seconds_of(links_->options.reconnect_s));
  if (!placement) std::rethrow_exception(sent_[refused.front()].call->error);
  std::vector<std::unique_ptr<Detour>> detours(links_->peers.size());
  for (const size_t i : refused) add_refused(sent_[i], *placement, detours);
  for (size_t server = 0; server < detours.size(); ++server) {
    if (!detours[server]) continue;
    std::unique_ptr<Detour> detour = std::move(detours[server]);
    detour->routed.server_begin = {0, static_cast<uint32_t>(detour->routed.keys.size())};
    detour->part = {&detour->routed, detour->grads.data()};
    std::sort(detour->slots.begin(), detour->slots.end());
    const std::span<const Part> parts(&detour->part, 1);
    std::vector<Slice> slices = slices_of(parts, 0);
    Peer& peer = *links_->peers[server];
    auto call = push_call(peer, slices, detour->slots, placement->epoch);
    peer.submit(call);
    sent_.push_back({&peer, std::move(call), std::move(slices), std::move(detour)});
  }
}

void RemotePending::add_refused(const Sent& sent, const Placement& placement,
                                std::vector<std::unique_ptr<Detour>>& detours) const {
  const auto slots = static_cast<uint32_t>(placement.server_of_slot.size());
  std::vector<uint8_t> wanted(slots, 0);
  for (const uint16_t slot : slots_in(*sent.call)) {
    if (slot >= slots) throw PeerLost("a server refused a slot that there is not");
    wanted[slot] = 1;
    std::unique_ptr<Detour>& detour = detours[placement.server_of_slot[slot]];
    if (!detour) {
      detour = std::make_unique<Detour>();
      detour->routed.row_offset = {0};
    }
    detour->slots.push_back(slot);
  }
  for (const Slice& slice : sent.slices) {
    const Routed& from = *slice.part->routed;
    for (uint32_t i = slice.begin; i < slice.end; ++i) {
      const uint32_t slot = slot_of(hash_key(from.tables[i], from.keys[i]), slots);
      if (wanted[slot] == 0) continue;
      Detour& detour = *detours[placement.server_of_slot[slot]];
      const float* row = slice.part->rows + from.row_offset[i];
      detour.grads.insert(detour.grads.end(), row, row + (from.row_offset[i + 1] - from.row_offset[i]));
      detour.routed.tables.push_back(from.tables[i]);
      detour.routed.keys.push_back(from.keys[i]);
      detour.routed.row_offset.push_back(static_cast<uint32_t>(detour.grads.size()));
    }
  }
}

void RemotePending::lower_seen(std::span<uint64_t> by_server) const {
  for (const Sent& sent : sent_) {
    if (sent.peer->index() >= by_server.size()) continue;
    uint64_t& seen = by_server[sent.peer->index()];
    seen = std::min(seen, sent.call->answer.step);
  }
}

bool RemotePending::done() {
  return std::all_of(sent_.begin(), sent_.end(), [](Sent& sent) { return sent.peer->done(*sent.call); });
}

}  // namespace springtide
