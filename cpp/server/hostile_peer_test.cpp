// Tests hostile or broken peers: ten thousand mutated frames, and slow and half-open connections. The server stays up,
// counts invalid frames, and still serves a good client.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "client/remote_backend.h"
#include "net/frame_io.h"
#include "net/handshake.h"
#include "net/window.h"
#include "server/server.h"
#include "testing/check.h"
#include "wire/wire.h"

namespace springtide::hostile_peer_test {

namespace {

constexpr uint32_t kSlots = 64;
const std::string kSecret = "a secret of this test";

struct Target {
  explicit Target(double stall_s, uint32_t max_connections = 64) : store(store_options()) {
    ServerOptions options;
    options.secret = kSecret;
    options.stall_s = stall_s;
    options.handshake_s = stall_s;
    options.step_wait_s = 0.001;
    options.max_frame_bytes = 1 << 20;
    options.max_connections = max_connections;
    server = std::make_unique<Server>(store, options);
    TableSpec spec;
    spec.name = "t";
    spec.dim = 4;
    spec.init = {InitKind::uniform, -1, 1};
    store.declare(spec);
    server->start();
  }
  static StoreOptions store_options() {
    StoreOptions options;
    options.slots = kSlots;
    options.reserve_bytes = 1 << 30;
    return options;
  }
  Fd connect() const {
    Fd fd = connect_tcp("127.0.0.1", server->port(), Clock::now() + std::chrono::seconds(5));
    CHECK(fd);
    set_timeouts(fd.get(), 20, 20);
    return fd;
  }
  // Completes the handshake over TCP or, with a window, over the local socket.
  Fd connect_as_member(const Window* window) const {
    Fd fd = connect();
    const Welcome welcome = offer_handshake(fd.get(), kSecret, {});
    if (window == nullptr) return fd;
    Fd local = connect_local(welcome.local_name.data());
    set_timeouts(local.get(), 20, 20);
    offer_handshake(local.get(), kSecret, {});
    FrameHeader frame;
    frame.kind = static_cast<uint8_t>(Kind::window);
    const uint64_t bytes = window->size();
    frame.body_bytes = sizeof bytes;
    seal(frame);
    std::vector<iovec> out = {{&frame, sizeof frame}};
    CHECK(send_all(local.get(), out) == Io::ok);
    CHECK(send_with_fd(local.get(), {reinterpret_cast<const uint8_t*>(&bytes), 8}, window->fd()) == Io::ok);
    std::vector<uint8_t> body;
    std::string why;
    CHECK(receive_frame(local.get(), frame, body, 4096, why) == Io::ok && why.empty());
    return local;
  }
  bool serves() const {
    RemoteOptions options;
    options.hosts = {"127.0.0.1"};
    options.ports = {server->port()};
    options.secret = kSecret;
    options.placement.server_of_slot.assign(kSlots, 0);
    options.generation = UINT32_MAX;  // members may increase the generation, and some mutated frames do
    RemoteBackend backend(options);
    Routed routed{{0, 0}, {1, 2}, {0, 4, 8}, {0, 2}};
    std::vector<float> rows(8, -7), direct(8);
    const Part part{&routed, rows.data()};
    backend.pull(std::span(&part, 1), {})->wait();
    const_cast<Store&>(store).pull(routed.tables, routed.keys, direct.data());
    return rows == direct;
  }

  Store store;
  std::unique_ptr<Server> server;
};

struct Bytes {
  FrameHeader header;
  std::vector<uint8_t> body;
};

Bytes valid_frame(std::mt19937_64& random, const Window* window) {
  Bytes frame;
  const Kind kinds[] = {Kind::pull, Kind::push,  Kind::assign, Kind::declare,
                        Kind::scan, Kind::stats, Kind::take,   Kind::own_all};
  const Kind kind = kinds[random() % std::size(kinds)];
  frame.header.kind = static_cast<uint8_t>(kind);
  if (kind == Kind::declare) {
    TableSpec spec;
    spec.id = static_cast<TableId>(1 + random() % 3);
    spec.name = "more";
    spec.dim = 3;
    frame.body = encode_tables(std::span(&spec, 1));
  } else if (kind == Kind::scan) {
    frame.body = {0, 0};
  } else if (kind != Kind::stats) {
    frame.header.keys = static_cast<uint32_t>(random() % 20);
    const uint64_t floats = frame.header.keys * 16;
    const TableHyper hyper{.table = 0, .lr = 0.1f};
    const FloatSpan span{4096, floats};
    const bool in_window = window != nullptr && random() % 2 == 0;
    frame.body = encode_prefix(frame.header, {}, std::span(&hyper, 1), std::span(&span, in_window ? 1 : 0), {});
    const BodyLayout at = layout_of(frame.header);
    frame.body.resize(at.floats + (in_window || kind == Kind::pull ? 0 : floats));
    if (random() % 4 == 0) {  // rows of plain sgd are as long as their images
      frame.header.flags |= kBsp;
      frame.header.step = 1 + random() % 4;
      for (uint32_t i = 0; i < frame.header.keys; ++i)
        if (random() % 2 == 0) frame.body[at.tables + i * sizeof(TableId) + 1] = kImage >> 8;
    }
    if (in_window) frame.header.flags |= kInWindow;
  }
  frame.header.body_bytes = frame.body.size();
  return frame;
}

void mutate(Bytes& frame, std::mt19937_64& random) {
  auto* header = reinterpret_cast<uint8_t*>(&frame.header);
  for (uint64_t i = random() % 4; i > 0; --i) {
    const uint64_t at = 6 + random() % (sizeof frame.header - 10);  // other tests cover magic and version
    header[at] = static_cast<uint8_t>(random() % 3 == 0 ? random() : header[at] ^ (1u << random() % 8));
  }
  for (uint64_t i = random() % 4; i > 0 && !frame.body.empty(); --i) {
    frame.body[random() % frame.body.size()] = static_cast<uint8_t>(random());
  }
  if (random() % 8 == 0) frame.body.resize(random() % (frame.body.size() + 64));
  if (random() % 2 == 0) frame.header.body_bytes = frame.body.size();
  seal(frame.header);
  if (random() % 8 == 0) header[random() % sizeof frame.header] ^= 1;
}

void read_to_the_end(int fd) {
  uint8_t waste[65536];
  while (recv(fd, waste, sizeof waste, 0) > 0) {
  }
}

}  // namespace

TEST(ten_thousand_mutated_frames_do_no_harm) {
  const uint64_t seed = 20261115;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Target target(5);
  CHECK(target.serves());
  const Window window = Window::create(1 << 20);
  for (int connection = 0; connection < 2500; ++connection) {
    const Window* mine = connection % 2 == 0 ? nullptr : &window;
    Fd fd = target.connect_as_member(mine);
    std::vector<uint8_t> stream;
    for (int i = 0; i < 4; ++i) {
      Bytes frame = valid_frame(random, mine);
      if (i > 0 || random() % 4 != 0) {
        mutate(frame, random);
      } else {
        seal(frame.header);
      }
      const auto* header = reinterpret_cast<const uint8_t*>(&frame.header);
      const size_t body = (frame.header.flags & kInWindow) != 0 && mine != nullptr ? 0 : frame.body.size();
      if (mine != nullptr && body == 0 && !frame.body.empty()) {
        std::memcpy(window.at(0, 4096, 8), frame.body.data(), std::min<size_t>(frame.body.size(), 4096));
      }
      stream.insert(stream.end(), header, header + sizeof frame.header);
      stream.insert(stream.end(), frame.body.begin(), frame.body.begin() + static_cast<ptrdiff_t>(body));
    }
    send(fd.get(), stream.data(), stream.size(), MSG_NOSIGNAL);  // the server may close in the middle
    shutdown(fd.get(), SHUT_WR);
    read_to_the_end(fd.get());
  }
  CHECK(target.server->stats().bad_frames > 1000);
  CHECK(target.serves());
}

// Sends a frame over a new connection, as a member. Returns status and text of the reply.
std::pair<Status, std::string> answer_to(const Target& target, Kind kind, uint8_t flags, size_t floats) {
  Fd fd = target.connect_as_member(nullptr);
  FrameHeader header;
  header.kind = static_cast<uint8_t>(kind);
  header.flags = flags;
  header.step = 1;
  header.keys = 2;
  const TableHyper hyper{.table = 0, .lr = 0.1f};
  std::vector<uint8_t> body = encode_prefix(header, {}, std::span(&hyper, 1), {}, {});
  const BodyLayout at = layout_of(header);
  body.resize(at.floats + floats * sizeof(float));
  for (size_t i = 0; i < 2; ++i) body[at.keys + i * sizeof(Key)] = static_cast<uint8_t>(i);
  body[at.tables + sizeof(TableId)] = 7;  // table 7 has adam and dim 4, so its images have 13 floats
  body[at.tables + sizeof(TableId) + 1] = kImage >> 8;
  CHECK(send_frame(fd.get(), header, body) == Io::ok);
  std::string why;
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::ok && why.empty());
  return {static_cast<Status>(header.status), text_of(body)};
}

TEST(images_of_another_length_than_their_table_has_are_refused) {
  Target target(5);
  TableSpec adam;
  adam.id = 7;
  adam.name = "adam";
  adam.dim = 4;
  adam.optim.kind = OptimKind::adam;
  target.store.declare(adam);
  CHECK(answer_to(target, Kind::push, kBsp, 4 + 13).first == Status::ok);
  for (const size_t floats : {8, 16, 18, 26}) {
    const auto [status, why] = answer_to(target, Kind::push, kBsp, floats);
    CHECK(status == Status::bad_input && why.find("whose tables ask for 17") != std::string::npos);
    CHECK(answer_to(target, Kind::assign, 0, floats).first == Status::bad_input);
  }
  CHECK(answer_to(target, Kind::assign, 0, 4 + 13).first == Status::ok);
  const auto [status, why] = answer_to(target, Kind::push, 0, 4 + 13);
  CHECK(status == Status::bad_input && why.find("with a step of a bsp group") != std::string::npos);
  CHECK(target.serves());
}

TEST(garbage_instead_of_a_handshake_is_refused) {
  std::mt19937_64 random(3);
  Target target(5);
  for (int i = 0; i < 200; ++i) {
    Fd fd = target.connect();
    std::vector<uint8_t> noise(random() % 400);
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    if (!noise.empty()) send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    read_to_the_end(fd.get());
  }
  CHECK(target.server->stats().refused == 200);
  CHECK(target.server->stats().accepted == 0);
  CHECK(target.serves());
}

TEST(another_version_is_told_so) {
  Target target(5);
  Fd fd = target.connect();
  FrameHeader header;
  header.version = 9;
  header.kind = static_cast<uint8_t>(Kind::hello);
  header.body_bytes = 0;
  seal(header);
  std::vector<iovec> out = {{&header, sizeof header}};
  CHECK(send_all(fd.get(), out) == Io::ok);
  std::vector<uint8_t> body;
  std::string why;
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::ok && why.empty());
  CHECK(header.status == static_cast<uint16_t>(Status::refused));
  CHECK(text_of(body).find("protocol version 9") != std::string::npos);
}

TEST(a_client_with_a_wrong_proof_is_refused) {
  Target target(5);
  Fd fd = target.connect();
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::hello);
  CHECK(send_frame(fd.get(), header, bytes_of(std::string(32, 'n'))) == Io::ok);
  std::vector<uint8_t> body;
  std::string why;
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::ok);
  header = {};
  header.kind = static_cast<uint8_t>(Kind::proof);
  CHECK(send_frame(fd.get(), header, bytes_of(std::string(32, 'p'))) == Io::ok);
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::ok);
  CHECK(text_of(body) == "the client does not know this job's secret");
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::closed);
}

TEST(a_refusal_without_a_reason_is_no_proof) {
  Target target(5);
  Fd fd = target.connect();
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::hello);
  CHECK(send_frame(fd.get(), header, bytes_of(std::string(32, 'n'))) == Io::ok);
  std::vector<uint8_t> body;
  std::string why;
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::ok);
  header = {};
  header.kind = static_cast<uint8_t>(Kind::proof);
  header.status = static_cast<uint16_t>(Status::refused);
  CHECK(send_frame(fd.get(), header, {}) == Io::ok);
  CHECK(receive_frame(fd.get(), header, body, 4096, why) == Io::ok);
  CHECK(text_of(body) == "it refused without a reason");
  CHECK(target.serves());
}

TEST(peers_that_stop_in_the_middle_lose_their_connection_and_idle_ones_do_not) {
  Target target(0.2);
  Fd silent = target.connect();                        // never sends a hello
  Fd idle = target.connect_as_member(nullptr);         // silent between frames
  Fd half_header = target.connect_as_member(nullptr);  // sends 10 bytes of a header
  Fd half_body = target.connect_as_member(nullptr);    // a header and no body
  CHECK(send(half_header.get(), "STDW......", 10, MSG_NOSIGNAL) == 10);
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::assign);
  header.body_bytes = 1 << 20;
  seal(header);
  CHECK(send(half_body.get(), &header, sizeof header, MSG_NOSIGNAL) == sizeof header);
  read_to_the_end(silent.get());  // each call returns after the server has closed the connection
  read_to_the_end(half_header.get());
  read_to_the_end(half_body.get());
  CHECK(target.server->stats().stalled == 2);
  header = {};
  header.kind = static_cast<uint8_t>(Kind::stats);
  CHECK(send_frame(idle.get(), header, {}) == Io::ok);
  std::vector<uint8_t> body;
  std::string why;
  CHECK(receive_frame(idle.get(), header, body, 4096, why) == Io::ok && body.size() == sizeof(ServerStats));
}

TEST(a_peer_that_takes_no_replies_loses_its_connection) {
  Target target(0.2);
  Fd fd = target.connect_as_member(nullptr);
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::pull);
  header.keys = 60000;
  std::vector<uint8_t> body(layout_of(header).floats, 0);
  std::vector<iovec> out;
  header.body_bytes = body.size();
  seal(header);
  set_timeouts(fd.get(), 20, 20);
  Io io = Io::ok;
  for (int i = 0; i < 1000 && io == Io::ok; ++i) {  // never reads, so that buffers fill up and the server gives up
    out = {{&header, sizeof header}, {body.data(), body.size()}};
    io = send_all(fd.get(), out);
  }
  CHECK(io == Io::failed);
  CHECK(target.serves());
}

// Returns whether the server closed the connection before all bytes of a hello were sent, one byte at a time.
bool closed_while_dripping(int fd) {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::hello);
  header.body_bytes = 32;
  seal(header);
  std::array<uint8_t, sizeof header + 32> hello{};
  std::memcpy(hello.data(), &header, sizeof header);
  set_timeouts(fd, 0.05, 20);
  for (const uint8_t byte : hello) {
    uint8_t any = 0;
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) return true;
    if (const ssize_t got = recv(fd, &any, 1, 0); got == 0 || (got < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

TEST(a_byte_now_and_then_does_not_keep_a_stranger_connected) {
  Target target(0.5);
  CHECK(closed_while_dripping(target.connect().get()));
}

TEST(strangers_never_take_the_places_of_members) {
  Target target(60, 4);
  Fd member = target.connect_as_member(nullptr);
  std::vector<Fd> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(target.connect());
    if (i % 2 == 0) CHECK(send(strangers.back().get(), "STDW......", 10, MSG_NOSIGNAL) == 10);
  }
  read_to_the_end(strangers.front().get());  // the server closed the oldest connections
  CHECK(target.serves());
  Fd other = target.connect_as_member(nullptr);
  FrameHeader header;
  header.kind = static_cast<uint8_t>(Kind::stats);
  for (const Fd* one : {&member, &other}) {
    CHECK(send_frame(one->get(), header, {}) == Io::ok);
    std::vector<uint8_t> body;
    std::string why;
    CHECK(receive_frame(one->get(), header, body, 4096, why) == Io::ok && body.size() == sizeof(ServerStats));
    header = {};
    header.kind = static_cast<uint8_t>(Kind::stats);
  }
  set_timeouts(strangers.back().get(), 0.05, 20);
  uint8_t any = 0;
  CHECK(recv(strangers.back().get(), &any, 1, 0) < 0 && errno == EAGAIN);  // the newest is still open
}

TEST(more_connections_than_allowed_are_turned_away_with_a_reason) {
  Target target(5, 2);
  Fd first = target.connect_as_member(nullptr);
  Fd second = target.connect_as_member(nullptr);
  Fd third = target.connect();
  try {
    offer_handshake(third.get(), kSecret, {});
    CHECK(false);
  } catch (const PeerLost& e) {
    CHECK(std::string(e.what()).find("2 connections already") != std::string::npos);
  }
}

}  // namespace springtide::hostile_peer_test
