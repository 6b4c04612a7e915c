#include "client/remote_backend.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/byte_stream.h"
#include "client/remote_pending.h"
#include "wire/wire.h"

namespace springtide {

namespace {

struct Asked {
  Peer* peer;
  std::shared_ptr<Call> call;
};

template <class Fill>
std::vector<Asked> ask_all(RemoteLinks& links, Kind kind, const Fill& fill) {
  links.check_process();
  std::vector<Asked> asked;
  for (Peer* peer : links.peers()) {
    auto call = links.call_for(*peer, kind);
    fill(*call);
    compose_small(*call, {});
    peer->submit(call);
    asked.push_back({peer, std::move(call)});
  }
  return asked;
}

constexpr auto kPause = std::chrono::milliseconds(2);  // pause before the next attempt while a slot changes its owner
constexpr uint64_t kAssignBytes = 32ULL << 20;         // large assignments are sent in frames of about this size

}  // namespace

RemoteBackend::RemoteBackend(const RemoteOptions& options) : links_(std::make_shared<RemoteLinks>(options)) {}

RemoteBackend::~RemoteBackend() {
  // In a forked child, the threads do not exist and the sockets are closed. The links are not freed, because their
  // destructor must not run there.
  if (getpid() != links_->owner) static_cast<void>(new std::shared_ptr<RemoteLinks>(links_));
}

std::shared_ptr<const Placement> RemoteBackend::placement() const {
  const auto routes = links_->routes();
  return {routes, &routes->placement};
}

uint64_t RemoteBackend::declare(std::span<const TableSpec> tables) {
  links_->check_process();
  return links_->declare(tables);
}

std::unique_ptr<Pending> RemoteBackend::pull(std::span<const Part> parts, const PullMeta& meta) {
  links_->check_process();
  auto pending = std::make_unique<RemotePending>(links_, Kind::pull);
  pending->pull(parts, meta);
  return pending;
}

std::unique_ptr<Pending> RemoteBackend::push(std::span<const Part> parts, const PushMeta& meta) {
  links_->check_process();
  auto pending = std::make_unique<RemotePending>(links_, Kind::push);
  pending->push(parts, meta);
  return pending;
}

void RemoteBackend::assign(std::span<const Part> parts, bool keep) {
  links_->check_process();
  for (const Part& part : parts) {
    for (size_t s = 0; s + 1 < part.routed->server_begin.size(); ++s) {
      for (Slice rest : slices_of(std::span(&part, 1), s)) {
        while (rest.begin != rest.end) {
          Slice now = rest;
          for (now.end = now.begin + 1; now.end < rest.end && now.bytes() < kAssignBytes; ++now.end) {
          }
          RemotePending pending(links_, Kind::assign);
          pending.assign(now, static_cast<uint16_t>(s), keep);
          pending.wait();
          rest.begin = now.end;
        }
      }
    }
  }
}

// Reads slot by slot from the current owner, so that a slot that moves meanwhile is read exactly once.
void RemoteBackend::scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) {
  links_->check_process();
  std::vector<uint16_t> left(placement()->server_of_slot.size());
  std::iota(left.begin(), left.end(), uint16_t{0});
  Clock::time_point until = Clock::now() + seconds_of(links_->options.follow_s());
  while (!left.empty()) {
    const auto routes = links_->routes();
    const uint16_t server = routes->placement.server_of_slot[left.front()];
    std::vector<uint16_t> here;
    std::copy_if(left.begin(), left.end(), std::back_inserter(here),
                 [&](uint16_t slot) { return routes->placement.server_of_slot[slot] == server; });
    std::vector<uint8_t> body;
    ByteWriter{body}.field(table);
    ByteWriter{body}.put(here.data(), here.size() * sizeof(uint16_t));
    std::shared_ptr<Call> call;
    try {
      call = links_->ask(links_->peer(server), Kind::scan, std::move(body), 0);
    } catch (const Refused& refused) {
      if (Clock::now() > until) throw;
      if (!links_->follow(refused.refusal)) links_->wait_for_news(routes->placement.version, kPause);
      continue;
    }
    ByteReader<PeerLost> reply{call->reply, "a scan's reply is malformed"};
    if (call->answer.step == 0 || call->answer.step > here.size()) throw PeerLost(reply.torn);
    std::vector<Key> slot_keys;
    std::vector<float> slot_rows;
    reply.elements(slot_keys, call->answer.keys);
    reply.elements(slot_rows, reply.rest.size() / sizeof(float));
    keys.insert(keys.end(), slot_keys.begin(), slot_keys.end());
    rows.insert(rows.end(), slot_rows.begin(), slot_rows.end());
    const auto done = std::span(here).first(call->answer.step);
    std::erase_if(left, [&](uint16_t slot) { return std::ranges::find(done, slot) != done.end(); });
    until = Clock::now() + seconds_of(links_->options.follow_s());
  }
}

void RemoteBackend::reroute(Placement placement, const std::map<uint16_t, std::string>& addresses) {
  links_->check_process();
  links_->reroute(std::move(placement), addresses);
}

void RemoteBackend::readdress(size_t server, uint32_t life, const std::string& host, uint16_t port) {
  links_->check_process();
  // If this client does not know a server yet, only the server's new address matters.
  if (Peer* known = links_->find(server)) known->move_to(life, host, port);
}

RemoteStats RemoteBackend::stats() const {
  RemoteStats stats;
  links_->add_to(stats);
  return stats;
}

std::shared_ptr<float> RemoteBackend::buffer(size_t floats) {
  const auto shared = links_->shared;
  const std::vector<Peer*> peers = links_->peers();
  const bool local = std::any_of(peers.begin(), peers.end(), [](auto* peer) { return peer->shared() != nullptr; });
  if (local) {
    if (const auto offset = shared->heap.allocate(floats * sizeof(float))) {
      auto* memory = reinterpret_cast<float*>(shared->window.at(*offset, floats * sizeof(float), 8));
      return {memory, [shared, offset = *offset](float*) { shared->heap.release(offset); }};
    }
  }
  return Backend::buffer(floats);
}

// The functions below are for bsp steps: they send requests to every server that has slots. These functions are a part
// of RemoteBackend.
bool RemoteBackend::step_complete(uint64_t step, double wait_s) {
  const std::vector<Asked> asked = ask_all(*links_, Kind::step, [&](Call& call) {
    call.header.step = step;
    call.header.clock = static_cast<uint64_t>(wait_s * 1000);
    call.timeout_s += wait_s;
  });
  bool complete = true;
  std::exception_ptr first;
  for (const Asked& one : asked) {
    try {
      one.peer->wait(*one.call);
    } catch (...) {
      if (one.call->answer.status == static_cast<uint16_t>(Status::step_missing)) {
        complete = false;
      } else if (!first) {
        first = std::current_exception();
      }
    }
  }
  if (first) std::rethrow_exception(first);
  return complete;
}

std::unique_ptr<Pending> RemoteBackend::apply_step(uint64_t step) {
  auto pending = std::make_unique<RemotePending>(links_, Kind::step);
  links_->check_process();
  for (Peer* peer : links_->peers()) {
    auto call = links_->call_for(*peer, Kind::step);
    call->header.step = step;
    call->header.flags = kBsp;
    compose_small(*call, {});
    pending->submit(*peer, std::move(call));
  }
  return pending;
}

void RemoteBackend::set_generation(uint32_t generation) { links_->set_generation(generation); }

uint64_t RemoteBackend::regroup() {
  uint64_t complete = UINT64_MAX;
  for (const Asked& one : ask_all(*links_, Kind::regroup, [](Call&) {})) {
    one.peer->wait(*one.call);
    complete = std::min(complete, one.call->answer.step);
  }
  return complete;
}

void RemoteBackend::settle_group(uint64_t step, uint32_t workers, bool at_rest) {
  const std::vector<Asked> asked = ask_all(*links_, Kind::regroup, [&](Call& call) {
    call.header.step = step;
    call.header.keys = workers;
    call.header.flags = at_rest ? kBsp | kAtRest : kBsp;
  });
  for (const Asked& one : asked) one.peer->wait(*one.call);
}

}  // namespace springtide
