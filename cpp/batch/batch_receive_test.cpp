// A message is received completely, or up to the first unexpected part, even if the socket splits it.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "batch/batch_payload.h"
#include "testing/check.h"

namespace springtide::batch_receive_test {

namespace {

struct Ends {
  int ours = -1, theirs = -1;
  Ends() {
    int both[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    ours = both[0];
    theirs = both[1];
  }
  ~Ends() {
    ::close(ours);
    ::close(theirs);
  }
};

std::string head(uint16_t flags, uint32_t fields, uint32_t header, uint64_t payload) {
  std::string made(sizeof(MessageHead), '\0');
  std::memcpy(made.data(), "STDB\1\7", 6);
  std::memcpy(made.data() + 6, &flags, 2);
  std::memcpy(made.data() + 8, &fields, 4);
  std::memcpy(made.data() + 12, &header, 4);
  std::memcpy(made.data() + 16, &payload, 8);
  return made;
}

std::span<const std::byte> bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string words(const std::vector<std::byte>& text) {
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

const std::string kBegins = "STDB\1", kHeader = "looks";

ReceivedMessage receive(const Ends& ends, std::vector<std::byte>& into) {
  return receive_message(ends.ours, {bytes(kBegins), 100, 100, bytes(kHeader), into});
}

void say(const Ends& ends, const std::string& text) {
  CHECK(::send(ends.theirs, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
}

}  // namespace

TEST(what_is_as_expected_is_taken_whole_however_small_its_parts) {
  const Ends ends;
  std::vector<std::byte> into(8);
  const std::string whole = head(0, 2, 5, 8) + "ab" + kHeader + "12345678";
  std::thread sender([&] {
    for (char one : whole) say(ends, std::string(1, one));
  });
  const ReceivedMessage taken = receive(ends, into);
  sender.join();
  CHECK(taken.error == 0 && taken.came == ReceivedMessage::Progress::whole);
  CHECK(words(taken.text) == "ablooks" && words(into) == "12345678");
}

TEST(a_payload_of_another_look_size_or_place_is_left_on_the_socket) {
  for (const std::string& other : {head(0, 2, 5, 8) + "abother", head(0, 2, 5, 7) + "ablooks",
                                   head(1, 2, 5, 8) + "ablooks", head(0, 2, 0, 0) + "ab"}) {
    const Ends ends;
    std::vector<std::byte> into(8);
    say(ends, other + "12345678");
    const ReceivedMessage taken = receive(ends, into);
    CHECK(taken.error == 0 && taken.came == ReceivedMessage::Progress::text);
    char left[9] = {};
    CHECK(::recv(ends.ours, left, 8, MSG_WAITALL) == 8 && std::string(left) == "12345678");
  }
}

TEST(of_a_head_that_is_not_ours_nothing_more_is_read) {
  for (const std::string& odd : {std::string(sizeof(MessageHead), 'x'), head(0, 101, 5, 8), head(0, 2, 101, 8)}) {
    const Ends ends;
    std::vector<std::byte> into(8);
    say(ends, odd + "z");
    const ReceivedMessage taken = receive(ends, into);
    CHECK(taken.error == 0 && taken.came == ReceivedMessage::Progress::head && taken.text.empty());
    char left = 0;
    CHECK(::recv(ends.ours, &left, 1, 0) == 1 && left == 'z');
  }
}

TEST(a_message_that_breaks_off_anywhere_says_so) {
  const std::string whole = head(0, 2, 5, 8) + "ab" + kHeader + "12345678";
  for (size_t length = 0; length < whole.size(); ++length) {
    Ends ends;
    std::vector<std::byte> into(8);
    if (length > 0) say(ends, whole.substr(0, length));
    ::shutdown(ends.theirs, SHUT_WR);
    CHECK(receive(ends, into).error == -1);
  }
}

}  // namespace springtide::batch_receive_test
