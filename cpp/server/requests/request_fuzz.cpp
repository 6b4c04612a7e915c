// Whatever frames a member sends, after a correct handshake: each is answered or ends the connection, and the tables
// stay whole. Input: a byte of settings, then frames; magic, version, size and check of each header are corrected.
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>

#include "net/frame_io.h"
#include "server/requests/request_handler.h"
#include "testing/fuzz.h"

namespace springtide::request_fuzz {

namespace {

constexpr uint32_t kSlots = 64;
constexpr uint64_t kMostBody = 1 << 16, kWindow = 1 << 16;

TableSpec spec_of(TableId id, uint32_t dim, DType dtype, OptimKind optimizer) {
  TableSpec spec;
  spec.id = id;
  spec.name = "table " + std::to_string(id);
  spec.dim = dim;
  spec.dtype = dtype;
  spec.optim.kind = optimizer;
  spec.min_count = id == 7 ? 2 : 0;
  spec.capacity_rows = id == 9 ? 8 : 0;
  return spec;
}

struct Member {
  Member(bool all, bool shared) : store({.slots = kSlots, .seed = 5, .reserve_bytes = 16 << 20}) {
    store.declare(spec_of(3, 2, DType::f32, OptimKind::adagrad));
    store.declare(spec_of(7, 4, DType::bf16, OptimKind::sgd));
    store.declare(spec_of(9, 1, DType::f16, OptimKind::ftrl));
    ServerOptions options;
    options.workers = 2;
    options.step_wait_s = 0;
    state = std::make_unique<ServerState>(store, options);
    if (!all) own_half();
    int ends[2];
    HOLDS(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    near = Fd(ends[0]), far = Fd(ends[1]);
    const timeval patience{0, 20'000};  // a reply that nobody reads is given up
    ::setsockopt(near.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    handler = std::make_unique<RequestHandler>(*state, Line(near.get()));
    if (shared) handler->use(Window::create(kWindow));
  }
  void own_half() {
    state->change_ownership([&](SlotOwnership& now) {
      now.epoch = 1;
      now.mine.assign(kSlots, 0), now.since.assign(kSlots, 0), now.owner.assign(kSlots, 1);
      now.addresses[1] = "host:1";
      for (uint32_t slot = 0; slot < kSlots; slot += 2) now.mine[slot] = 1, now.owner[slot] = 0;
    });
    for (uint32_t slot = 1; slot < kSlots; slot += 2) store.close_slot(slot);
  }
  // Reads what has been answered. The first header must be a correct one.
  void read_answer() {
    FrameHeader header;
    uint8_t rest[4096];
    const ssize_t got = ::recv(far.get(), &header, sizeof header, MSG_DONTWAIT);
    HOLDS(got == sizeof header && header_error(header, UINT64_MAX).empty() && (header.flags & kReply) != 0);
    while (::recv(far.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
    }
  }
  // Check that another store imports exactly what a slot exports.
  void check_slot(uint32_t slot) {
    const std::vector<uint8_t> image = store.export_slot(slot);
    HOLDS(is_whole(image));
    Store other({.slots = kSlots, .seed = 5, .reserve_bytes = 16 << 20});
    for (const TableSpec& spec : store.tables()) other.declare(spec);
    other.import_slot(image);
    HOLDS(other.export_slot(slot) == image);
  }

  Store store;
  std::unique_ptr<ServerState> state;
  Fd near, far;
  std::unique_ptr<RequestHandler> handler;
};

}  // namespace

FUZZ(bytes) {
  const auto settings = fuzz::take<uint8_t>(bytes);
  Member member((settings & 1) != 0, (settings & 2) != 0);
  std::vector<uint64_t> aligned;
  for (int frames = 0; frames < 32 && bytes.size() >= sizeof(FrameHeader); ++frames) {
    auto header = fuzz::take<FrameHeader>(bytes);
    header.magic = kMagic, header.version = kVersion;
    header.body_bytes = std::min({header.body_bytes, uint64_t{bytes.size()}, kMostBody});
    seal(header);
    if (!header_error(header, kMostBody).empty()) continue;  // an unknown kind
    aligned.assign((header.body_bytes + 7) / 8, 0);
    if (header.body_bytes != 0) std::memcpy(aligned.data(), bytes.data(), header.body_bytes);
    bytes = bytes.subspan(header.body_bytes);
    const std::span<const uint8_t> body{reinterpret_cast<const uint8_t*>(aligned.data()), header.body_bytes};
    if (!member.handler->handle(header, body)) break;
    member.read_answer();
  }
  if ((settings & 4) != 0) member.check_slot(settings >> 3);
}

}  // namespace springtide::request_fuzz
