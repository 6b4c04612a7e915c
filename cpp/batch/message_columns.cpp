#include "batch/message_columns.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace springtide {
namespace {

constexpr size_t kAtOnce = 256;  // number of messages at a time; few enough to be in the CPU cache when they are copied

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

MessageRun& run_of(Consumed& found, int32_t partition, MessageRun* last) {
  if (last != nullptr && last->partition == partition) return *last;
  for (const auto& run : found.runs) {
    if (run->partition == partition) return *run;
  }
  found.runs.push_back(std::make_unique<MessageRun>());
  found.runs.back()->partition = partition;
  return *found.runs.back();
}

void append(MessageRun& run, const KafkaCalls& calls, const KafkaMessage& message, double now) {
  const auto* bytes = static_cast<const uint8_t*>(message.payload);
  if (bytes != nullptr) run.payload.insert(run.payload.end(), bytes, bytes + message.size);
  run.ends.push_back(static_cast<int64_t>(run.payload.size()));
  run.offsets.push_back(message.offset);
  int kind = 0;
  const int64_t millis = calls.message_timestamp(&message, &kind);
  run.times.push_back(millis < 0 ? now : static_cast<double>(millis) / 1000.0);
}

}  // namespace

Consumed consume(const KafkaCalls& calls, void* queue, size_t most, int timeout_ms) {
  Consumed found;
  std::array<KafkaMessage*, kAtOnce> messages;
  MessageRun* last = nullptr;
  size_t got = 0;
  while (got < most) {
    const size_t room = std::min(most - got, kAtOnce);
    ssize_t count = calls.consume_batch_queue(queue, 0, messages.data(), room);
    // With a timeout, librdkafka waits until it can fill all the room that the call gives. This call therefore gives
    // librdkafka room for one message only.
    if (count <= 0 && got == 0) count = calls.consume_batch_queue(queue, timeout_ms, messages.data(), 1);
    if (count <= 0) break;
    const double now = now_s();
    for (ssize_t i = 0; i < count; ++i) {
      const KafkaMessage& message = *messages[i];
      if (message.error != 0) {
        found.news.push_back({message.partition, message.error, message.offset});
      } else {
        last = &run_of(found, message.partition, last);
        append(*last, calls, message, now);
      }
      calls.message_destroy(messages[i]);
    }
    got += static_cast<size_t>(count);
  }
  return found;
}

}  // namespace springtide
