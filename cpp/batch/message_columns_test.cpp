// Messages of a fake librdkafka become columns by partition, complete and in order. Each message is destroyed once.
#include "batch/message_columns.h"

#include <deque>
#include <string>

#include "testing/check.h"

namespace springtide::message_columns_test {

namespace {

std::deque<KafkaMessage> waiting;
int given_back = 0, waited_ms = 0;

ssize_t take(void*, int timeout_ms, KafkaMessage** messages, size_t room) {
  waited_ms += timeout_ms;
  size_t count = 0;
  while (count < room && !waiting.empty()) {
    messages[count++] = new KafkaMessage(waiting.front());
    waiting.pop_front();
  }
  return static_cast<ssize_t>(count);
}

int64_t stamp(const KafkaMessage* message, int* kind) {
  *kind = 1;
  return message->partition == 9 ? -1 : 1000 * message->offset;
}

void give_back(KafkaMessage* message) {
  ++given_back;
  delete message;
}

KafkaMessage message(int32_t partition, int64_t offset, const std::string& body, int error = 0) {
  return {error, nullptr, partition, body.data(), body.size(), nullptr, 0, offset, nullptr};
}

const KafkaCalls calls{take, stamp, give_back};

}  // namespace

TEST(messages_of_one_call_become_one_run_a_partition) {
  const std::string one = "one", three = "three";
  Consumed nothing = consume(calls, nullptr, 10, 7);
  CHECK(nothing.runs.empty() && nothing.news.empty() && waited_ms == 7);

  for (int i = 0; i < 600; ++i) {
    waiting.push_back(message(i % 3 == 2 ? 5 : 2, i, i % 2 == 0 ? one : three));
    if (i == 300) waiting.push_back(message(5, 301, one, -191));
  }
  waiting.push_back({0, nullptr, 9, nullptr, 0, nullptr, 0, 77, nullptr});
  Consumed found = consume(calls, nullptr, 500, 0);
  CHECK(given_back == 500 && waiting.size() == 102 && found.runs.size() == 2);
  const MessageRun& first = *found.runs[0];
  CHECK(first.partition == 2 && first.offsets[0] == 0 && first.offsets[1] == 1 && first.offsets[2] == 3);
  CHECK(first.ends[0] == 3 && first.ends[1] == 8 && first.times[2] == 3.0);
  CHECK(std::string(first.payload.begin(), first.payload.begin() + 8) == "onethree");
  CHECK(found.runs[1]->partition == 5 && found.runs[1]->offsets[0] == 2);
  CHECK(found.news.size() == 1 && found.news[0].error == -191 && found.news[0].offset == 301);
  CHECK(first.offsets.size() + found.runs[1]->offsets.size() == 499);

  Consumed rest = consume(calls, nullptr, 500, 0);
  CHECK(given_back == 602 && waiting.empty() && rest.runs.size() == 3);
  CHECK(rest.runs[2]->partition == 9 && rest.runs[2]->payload.empty() && rest.runs[2]->ends[0] == 0);
  CHECK(rest.runs[2]->times[0] > 1e9);  // no timestamp: time of arrival
}

}  // namespace springtide::message_columns_test
