#include "remote_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "peer.h"
#include "wire_tables.h"

namespace springtide {
namespace {

constexpr uint64_t kWindowBytes = 8ULL
                                  << 30;  // address space; a frame that finds no room goes over the socket
constexpr uint64_t kAssignBytes = 32ULL << 20;  // a large assignment goes out in frames of about this size

void check_process(pid_t owner) {
  if (getpid() != owner) {
    throw BadInput("connections to servers belong to process " + std::to_string(owner) +
                   "; a forked process (a data loader's worker) cannot use them");
  }
}

class RemotePending final : public Pending {
 public:
  RemotePending(std::shared_ptr<void> keeper, pid_t owner) : keeper_(std::move(keeper)), owner_(owner) {}
  ~RemotePending() override {
    if (getpid() != owner_) {
      static_cast<void>(new std::shared_ptr<void>(std::move(keeper_)));  // as in ~RemoteBackend
      return;
    }
    for (auto& [peer, call] : calls_) peer->settle(*call);
  }
  void submit(Peer& peer, std::shared_ptr<Call> call) {
    peer.submit(call);
    calls_.emplace_back(&peer, std::move(call));
  }
  void wait() override {
    check_process(owner_);
    std::exception_ptr first;
    for (auto& [peer, call] : calls_) {  // all of them: the caller's memory is free again after wait()
      try {
        peer->wait(*call);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }
  bool done() override {
    return std::all_of(calls_.begin(), calls_.end(),
                       [](auto& entry) { return entry.first->done(*entry.second); });
  }

 private:
  std::shared_ptr<void> keeper_;  // of the peers
  std::vector<std::pair<Peer*, std::shared_ptr<Call>>> calls_;
  pid_t owner_;
};

}  // namespace

struct RemoteBackend::Impl {
  explicit Impl(const RemoteOptions& o) : options(o), owner(getpid()) {}

  std::shared_ptr<Call> call_for(const Peer& peer, Kind kind) const {
    auto call = std::make_shared<Call>();
    call->header = peer.header(kind);
    call->timeout_s = options.request_timeout_s;
    return call;
  }
  // Sends to one server and waits. For what is not on a step's path.
  std::shared_ptr<Call> ask(Peer& peer, Kind kind, std::vector<uint8_t> body, uint64_t step) const {
    auto call = call_for(peer, kind);
    call->header.step = step;
    compose_small(*call, std::move(body));
    peer.submit(call);
    peer.wait(*call);
    return call;
  }

  const RemoteOptions options;
  const pid_t owner;
  std::vector<uint8_t> owns_any;  // by server: has a slot in our placement
  std::shared_ptr<SharedWindow> shared;
  std::vector<std::unique_ptr<Peer>> peers;
};

RemoteBackend::RemoteBackend(const RemoteOptions& options) : impl_(std::make_shared<Impl>(options)) {
  const Placement& placement = impl_->options.placement;
  const size_t servers = options.hosts.size();
  if (servers == 0 || servers != options.ports.size() || servers != placement.servers) {
    throw BadInput("a client of " + std::to_string(placement.servers) + " servers got " +
                   std::to_string(servers) + " hosts and " + std::to_string(options.ports.size()) + " ports");
  }
  impl_->owns_any.resize(servers, 0);
  for (const uint16_t server : placement.server_of_slot) {
    if (server >= servers)
      throw BadInput("the placement names server " + std::to_string(server) + " of " +
                     std::to_string(servers));
    impl_->owns_any[server] = 1;
  }
  if (options.shared_memory) impl_->shared = std::make_shared<SharedWindow>(kWindowBytes);
  for (size_t i = 0; i < servers; ++i) {
    impl_->peers.push_back(std::make_unique<Peer>(impl_->options, static_cast<uint16_t>(i), impl_->shared));
  }
}

RemoteBackend::~RemoteBackend() {
  // In a forked child the threads are not there and the sockets are closed already: nothing may be touched.
  if (getpid() != impl_->owner) static_cast<void>(new std::shared_ptr<Impl>(impl_));
}

const Placement& RemoteBackend::placement() const { return impl_->options.placement; }

void RemoteBackend::declare(std::span<const TableSpec> tables) {
  check_process(impl_->owner);
  for (const auto& peer : impl_->peers) impl_->ask(*peer, Kind::declare, encode_tables(tables), 0);
}

std::unique_ptr<Pending> RemoteBackend::pull(std::span<const Part> parts, const PullMeta& meta) {
  check_process(impl_->owner);
  auto pending = std::make_unique<RemotePending>(impl_, impl_->owner);
  for (size_t s = 0; s < impl_->peers.size(); ++s) {
    const std::vector<Slice> slices = slices_of(parts, static_cast<uint16_t>(s));
    if (slices.empty()) continue;
    Peer& peer = *impl_->peers[s];
    auto call = impl_->call_for(peer, Kind::pull);
    call->header.step = meta.after_step;
    if (meta.after_step != 0) call->timeout_s += static_cast<double>(peer.terms().step_wait_ms) / 1000;
    compose(*call, slices, {}, peer.shared());
    pending->submit(peer, std::move(call));
  }
  return pending;
}

std::unique_ptr<Pending> RemoteBackend::push(std::span<const Part> parts, const PushMeta& meta) {
  check_process(impl_->owner);
  std::vector<HyperRecord> hypers;
  for (const auto& [table, hyper] : meta.hyper) {
    hypers.push_back(
        {.table = table, .lr = hyper.lr, .weight_decay = hyper.weight_decay, .step = hyper.step});
  }
  // A push that trains something speaks for every slot of every server, keys or not.
  const bool everywhere = meta.bsp || !meta.batches.empty();
  auto pending = std::make_unique<RemotePending>(impl_, impl_->owner);
  for (size_t s = 0; s < impl_->peers.size(); ++s) {
    const std::vector<Slice> slices = slices_of(parts, static_cast<uint16_t>(s));
    if (slices.empty() && !(everywhere && impl_->owns_any[s] != 0)) continue;
    Peer& peer = *impl_->peers[s];
    auto call = impl_->call_for(peer, Kind::push);
    call->header.step = meta.step;
    call->header.clock = meta.clock;
    call->header.flags = static_cast<uint8_t>((meta.bsp ? kBsp : 0) | (meta.unique ? kUnique : 0));
    compose(*call, slices, {meta.batches, hypers}, peer.shared());
    pending->submit(peer, std::move(call));
  }
  return pending;
}

void RemoteBackend::assign(std::span<const Part> parts) {
  check_process(impl_->owner);
  for (size_t s = 0; s < impl_->peers.size(); ++s) {
    Peer& peer = *impl_->peers[s];
    for (Slice rest : slices_of(parts, static_cast<uint16_t>(s))) {
      while (rest.begin != rest.end) {
        Slice now = rest;
        for (now.end = now.begin + 1; now.end < rest.end && now.bytes() < kAssignBytes; ++now.end) {
        }
        auto call = impl_->call_for(peer, Kind::assign);
        compose(*call, std::span(&now, 1), {}, peer.shared());
        peer.submit(call);
        peer.wait(*call);
        rest.begin = now.end;
      }
    }
  }
}

void RemoteBackend::scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) {
  check_process(impl_->owner);
  const uint64_t slots = placement().server_of_slot.size();
  std::vector<uint8_t> body(sizeof table);
  std::memcpy(body.data(), &table, sizeof table);
  for (const auto& peer : impl_->peers) {
    for (uint64_t slot = 0; slot < slots;) {
      const auto call = impl_->ask(*peer, Kind::scan, body, slot);
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

RemoteStats RemoteBackend::stats() const {
  RemoteStats stats;
  for (const auto& peer : impl_->peers) peer->add_to(stats);
  return stats;
}

std::shared_ptr<float> RemoteBackend::buffer(size_t floats) {
  const auto shared = impl_->shared;
  const bool local = std::any_of(impl_->peers.begin(), impl_->peers.end(),
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
