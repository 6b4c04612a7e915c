// Pieces of a batch arrive at their places, whether copied or sent, even if the socket takes only a few bytes at a
// time.
#include "batch/batch_payload.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "testing/check.h"

namespace springtide::batch_payload_test {

namespace {

std::vector<std::byte> filled(size_t size, int with) { return std::vector<std::byte>(size, std::byte(with)); }

std::vector<std::byte> receive(int socket, size_t size) {
  std::vector<std::byte> got(size);
  for (size_t done = 0; done < size;) {
    const ssize_t came = ::recv(socket, got.data() + done, size - done, 0);
    if (came <= 0) break;
    done += static_cast<size_t>(came);
  }
  return got;
}

}  // namespace

TEST(pieces_are_copied_to_their_places) {
  const auto first = filled(5, 1), second = filled(7, 2);
  const std::vector<Piece> pieces{{0, first.data(), 5}, {64, second.data(), 7}};
  auto into = filled(128, 9);
  gather(pieces, into.data());
  CHECK(into[4] == std::byte{1} && into[5] == std::byte{9});
  CHECK(into[64] == std::byte{2} && into[70] == std::byte{2} && into[71] == std::byte{9});
}

TEST(pieces_that_overlap_or_end_outside_do_not_fit) {
  const auto data = filled(64, 1);
  CHECK(pieces_fit(std::vector<Piece>{{0, data.data(), 64}, {64, data.data(), 64}}, 128));
  CHECK(!pieces_fit(std::vector<Piece>{{0, data.data(), 64}, {63, data.data(), 1}}, 128));
  CHECK(!pieces_fit(std::vector<Piece>{{64, data.data(), 65}}, 128));
  CHECK(!pieces_fit(std::vector<Piece>{{~uint64_t{0}, data.data(), 2}}, 128));
  CHECK(!pieces_fit(std::vector<Piece>{{64, data.data(), ~uint64_t{0}}}, 128));
}

TEST(many_pieces_arrive_whole_through_a_small_socket) {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const int small = 4096;
  ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  const auto data = filled(100, 3);
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < 3000; ++i) pieces.push_back({i * 128, data.data(), 100});
  const auto prefix = filled(10, 7);
  const size_t size = 2999 * 128 + 100;
  std::thread sender([&] { CHECK(send_pieces(ends[0], prefix, pieces, -1) == 0); });
  const auto got = receive(ends[1], 10 + size);
  sender.join();
  std::vector<std::byte> wanted(size);
  gather(pieces, wanted.data());
  CHECK(std::memcmp(got.data(), prefix.data(), 10) == 0);
  CHECK(std::memcmp(got.data() + 10, wanted.data(), size) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(a_peer_that_is_gone_is_an_errno_and_no_signal) {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  ::close(ends[1]);
  CHECK(send_pieces(ends[0], filled(1, 1), {}, -1) == EPIPE);
  ::close(ends[0]);
}

}  // namespace springtide::batch_payload_test
