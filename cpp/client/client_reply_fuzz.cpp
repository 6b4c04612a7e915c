// Whatever a server answers after a correct handshake, each request of a client ends with all rows or with an error.
// Input: a byte of settings, then for each request a byte that chooses it, and the header and body of its reply.
// Magic, version, number and check of each header are corrected, and its size is what follows.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "client/remote_backend.h"
#include "net/frame_io.h"
#include "net/handshake.h"
#include "testing/fuzz.h"

namespace springtide::client_reply_fuzz {

namespace {

constexpr uint32_t kSlots = 64, kKeys = 6, kDim = 2;
constexpr uint64_t kMostBody = 1 << 12, kRowBytes = kKeys * kDim * sizeof(float);
constexpr float kUntouched = -77.0f;
const std::string kSecret = "secret";

struct Exchange {
  uint8_t request;
  FrameHeader answer;
  std::vector<uint8_t> body;
};

std::vector<Exchange> read_exchanges(fuzz::Bytes bytes) {
  std::vector<Exchange> read;
  while (bytes.size() > sizeof(FrameHeader) && read.size() < 8) {
    Exchange& next = read.emplace_back();
    next.request = fuzz::take<uint8_t>(bytes);
    next.answer = fuzz::take<FrameHeader>(bytes);
    const auto size = std::min<uint64_t>(next.answer.body_bytes % kMostBody, bytes.size());
    next.body.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    bytes = bytes.subspan(size);
    if (next.request >= 128) {  // as many bytes as a pull expects
      next.body.resize(kRowBytes + sizeof next.answer.server_ns);
      next.answer.flags |= kTimed;
    }
    // Owners have no address, because a client would look for a server there.
    try {
      Refusal refusal = decode_refusal(next.body);
      refusal.addresses.clear();
      next.body = encode(refusal);
    } catch (const PeerLost&) {
    }
  }
  return read;
}

// Accepts one client, and answers its requests one after the other.
class FalseServer {
 public:
  FalseServer(const Welcome& terms, const std::vector<Exchange>& exchanges, bool as_claimed)
      : terms_(terms), exchanges_(exchanges), as_claimed_(as_claimed), listener_(listen_tcp("127.0.0.1", 0, port)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~FalseServer() {
    shut_both(listener_.get());
    thread_.join();
  }
  uint16_t port = 0;

 private:
  void serve() {
    const Fd client(::accept(listener_.get(), nullptr, nullptr));
    FrameHeader request;
    std::vector<uint8_t> body;
    std::string why;
    if (!client || !accept_handshake(client.get(), kSecret, terms_, request, [] { return std::string(); }).empty()) {
      return;
    }
    for (const Exchange& exchange : exchanges_) {
      if (receive_frame(client.get(), request, body, 1 << 20, why) != Io::ok || !why.empty()) return;
      FrameHeader answer = exchange.answer;
      answer.magic = kMagic, answer.version = kVersion, answer.request = request.request;
      if (!as_claimed_) answer.body_bytes = exchange.body.size();
      seal(answer);
      if (::send(client.get(), &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) return;
      if (!exchange.body.empty() &&
          ::send(client.get(), exchange.body.data(), exchange.body.size(), MSG_NOSIGNAL) < 0) {
        return;
      }
    }
  }

  const Welcome terms_;
  const std::vector<Exchange>& exchanges_;
  const bool as_claimed_;  // true if a reply may claim another size than it has
  Fd listener_;
  std::thread thread_;
};

Welcome terms_of(uint8_t settings) {
  Welcome terms;
  terms.slots = kSlots;
  terms.epoch = 1;
  terms.max_frame_bytes = 1 << 20;
  terms.credit_requests = settings % 4;  // 0: one at a time, as every client does
  terms.credit_bytes = 1 << 20;
  terms.workers = 1;
  return terms;
}

RemoteOptions options_of(uint16_t port) {
  RemoteOptions options;
  options.hosts = {"127.0.0.1"}, options.ports = {port};
  options.secret = kSecret;
  options.placement.epoch = 2;
  options.placement.server_of_slot.assign(kSlots, 0);
  options.request_timeout_s = 20;
  options.reconnect_s = 0;
  options.shared_memory = false;
  return options;
}

struct Rows {
  Rows() {
    for (uint32_t i = 0; i < kKeys; ++i) {
      routed.tables.push_back(0), routed.keys.push_back(i), routed.row_offset.push_back(kDim * i);
    }
    routed.row_offset.push_back(kDim * kKeys);
    routed.server_begin = {0, kKeys};
  }
  Routed routed;
  std::vector<float> floats = std::vector<float>(kKeys * kDim, kUntouched);
  Part part{&routed, floats.data()};
};

void pull(RemoteBackend& backend, const std::vector<uint8_t>& sent, uint64_t after_step) {
  Rows rows;
  backend.pull(std::span(&rows.part, 1), {after_step})->wait();
  HOLDS(sent.size() >= kRowBytes && std::memcmp(rows.floats.data(), sent.data(), kRowBytes) == 0);
}

void push(RemoteBackend& backend, bool bsp) {
  Rows rows;
  PushMeta meta;
  meta.hyper = {{.table = 0, .lr = 1.0f}};
  meta.bsp = bsp;
  meta.step = 1;
  meta.unique = true;
  if (!bsp) meta.batches = {{.shard = 1, .first = 0, .count = 4}};
  backend.push(std::span(&rows.part, 1), meta)->wait();
  HOLDS(std::all_of(rows.floats.begin(), rows.floats.end(), [](float each) { return each == kUntouched; }));
}

void ask(RemoteBackend& backend, const Exchange& exchange) {
  Rows rows;
  std::vector<Key> keys;
  std::vector<float> floats;
  TableSpec table;
  table.name = "clicks", table.dim = kDim;
  switch (exchange.request % 8) {
    case 0:
      return pull(backend, exchange.body, 0);
    case 1:
      return pull(backend, exchange.body, 1);
    case 2:
      return push(backend, false);
    case 3:
      return push(backend, true);
    case 4:
      return backend.assign(std::span(&rows.part, 1), false);
    case 5:
      return backend.scan(0, keys, floats);
    case 6:
      backend.declare(std::span(&table, 1));
      return;
    default:
      backend.step_complete(1, 0);
      backend.regroup();
  }
}

}  // namespace

FUZZ(bytes) {
  const auto settings = fuzz::take<uint8_t>(bytes);
  const std::vector<Exchange> exchanges = read_exchanges(bytes);
  const FalseServer server(terms_of(settings), exchanges, (settings & 4) != 0);
  RemoteBackend backend(options_of(server.port));
  for (const Exchange& exchange : exchanges) {
    try {
      ask(backend, exchange);
    } catch (const Error&) {  // the text may be empty, because it may be the server's own
    }
  }
}

}  // namespace springtide::client_reply_fuzz
