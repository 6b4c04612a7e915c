#include "remote_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "remote_pending.h"
#include "wire_tables.h"

namespace springtide {
namespace {

constexpr uint64_t kWindowBytes = 8ULL
                                  << 30;  // address space; a frame that finds no room goes over the socket
constexpr uint64_t kAssignBytes = 32ULL << 20;  // a large assignment goes out in frames of about this size

}  // namespace

RemoteBackend::RemoteBackend(const RemoteOptions& options) : links_(std::make_shared<RemoteLinks>(options)) {
  const Placement& placement = links_->options.placement;
  const size_t servers = options.hosts.size();
  if (servers == 0 || servers != options.ports.size() || servers != placement.servers) {
    throw BadInput("a client of " + std::to_string(placement.servers) + " servers got " +
                   std::to_string(servers) + " hosts and " + std::to_string(options.ports.size()) + " ports");
  }
  links_->owns_any.resize(servers, 0);
  for (const uint16_t server : placement.server_of_slot) {
    if (server >= servers)
      throw BadInput("the placement names server " + std::to_string(server) + " of " +
                     std::to_string(servers));
    links_->owns_any[server] = 1;
  }
  if (options.shared_memory) links_->shared = std::make_shared<SharedWindow>(kWindowBytes);
  for (size_t i = 0; i < servers; ++i) {
    links_->peers.push_back(
        std::make_unique<Peer>(links_->options, static_cast<uint16_t>(i), links_->shared));
  }
}

RemoteBackend::~RemoteBackend() {
  // In a forked child the threads are not there and the sockets are closed already: nothing may be touched.
  if (getpid() != links_->owner) static_cast<void>(new std::shared_ptr<RemoteLinks>(links_));
}

const Placement& RemoteBackend::placement() const { return links_->options.placement; }

void RemoteBackend::declare(std::span<const TableSpec> tables) {
  links_->check_process();
  for (const auto& peer : links_->peers) links_->ask(*peer, Kind::declare, encode_tables(tables), 0);
}

std::unique_ptr<Pending> RemoteBackend::pull(std::span<const Part> parts, const PullMeta& meta) {
  links_->check_process();
  auto pending = std::make_unique<RemotePending>(links_);
  for (size_t s = 0; s < links_->peers.size(); ++s) {
    const std::vector<Slice> slices = slices_of(parts, static_cast<uint16_t>(s));
    if (slices.empty()) continue;
    Peer& peer = *links_->peers[s];
    auto call = links_->call_for(peer, Kind::pull);
    call->header.step = meta.after_step;
    if (meta.after_step != 0) call->timeout_s += static_cast<double>(peer.terms().step_wait_ms) / 1000;
    compose(*call, slices, {}, peer.shared());
    pending->submit(peer, std::move(call));
  }
  return pending;
}

std::unique_ptr<Pending> RemoteBackend::push(std::span<const Part> parts, const PushMeta& meta) {
  links_->check_process();
  // A push that trains something speaks for every slot of every server, keys or not.
  const bool everywhere = meta.bsp || !meta.batches.empty();
  auto pending = std::make_unique<RemotePending>(links_);
  pending->keep(parts, meta);
  for (size_t s = 0; s < links_->peers.size(); ++s) {
    if (pending->slices(s).empty() && !(everywhere && links_->owns_any[s] != 0)) continue;
    pending->push(s);
  }
  return pending;
}

void RemoteBackend::assign(std::span<const Part> parts) {
  links_->check_process();
  for (size_t s = 0; s < links_->peers.size(); ++s) {
    Peer& peer = *links_->peers[s];
    for (Slice rest : slices_of(parts, static_cast<uint16_t>(s))) {
      while (rest.begin != rest.end) {
        Slice now = rest;
        for (now.end = now.begin + 1; now.end < rest.end && now.bytes() < kAssignBytes; ++now.end) {
        }
        auto call = links_->call_for(peer, Kind::assign);
        compose(*call, std::span(&now, 1), {}, peer.shared());
        peer.submit(call);
        peer.wait(*call);
        rest.begin = now.end;
      }
    }
  }
}

void RemoteBackend::scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) {
  links_->check_process();
  const uint64_t slots = placement().server_of_slot.size();
  std::vector<uint8_t> body(sizeof table);
  std::memcpy(body.data(), &table, sizeof table);
  for (const auto& peer : links_->peers) {
    for (uint64_t slot = 0; slot < slots;) {
      const auto call = links_->ask(*peer, Kind::scan, body, slot);
      const uint64_t count = call->answer.keys, key_bytes = count * sizeof(Key);
      if (call->reply.size() < key_bytes || call->answer.step <= slot)
        throw PeerLost("a scan's reply makes no sense");
      const uint64_t float_bytes = call->reply.size() - key_bytes;
      const size_t old_keys = keys.size(), old_rows = rows.size();
      keys.resize(old_keys + count);
      rows.resize(old_rows + float_bytes / sizeof(float));
      if (count != 0) {
        std::memcpy(keys.data() + old_keys, call->reply.data(), key_bytes);
        std::memcpy(rows.data() + old_rows, call->reply.data() + key_bytes, float_bytes);
      }
      slot = call->answer.step;
    }
  }
}

void RemoteBackend::reroute(Placement placement) { links_->reroute(std::move(placement)); }

void RemoteBackend::readdress(size_t server, uint32_t life, const std::string& host, uint16_t port) {
  links_->check_process();
  if (server >= links_->peers.size())
    throw BadInput("there is no server " + std::to_string(server) + " to have another address");
  links_->peers[server]->move_to(life, host, port);
}

RemoteStats RemoteBackend::stats() const {
  RemoteStats stats;
  for (const auto& peer : links_->peers) peer->add_to(stats);
  return stats;
}

std::shared_ptr<float> RemoteBackend::buffer(size_t floats) {
  const auto shared = links_->shared;
  const bool local = std::any_of(links_->peers.begin(), links_->peers.end(),
                                 [](auto& peer) { return peer->shared() != nullptr; });
  if (local) {
    if (const auto offset = shared->heap.allocate(floats * sizeof(float))) {
      auto* memory = reinterpret_cast<float*>(shared->window.at(*offset, floats * sizeof(float), 8));
      return {memory, [shared, offset = *offset](float*) { shared->heap.release(offset); }};
    }
  }
  return Backend::buffer(floats);
}

}  // namespace springtide
