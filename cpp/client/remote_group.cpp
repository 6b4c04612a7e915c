// bsp steps: what a client asks of every server that has slots. A part of RemoteBackend.
#include <algorithm>

#include "client/remote_backend.h"
#include "client/remote_pending.h"

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

}  // namespace

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
