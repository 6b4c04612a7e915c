// Kafka messages as columns per partition, without a Python object per record and without the GIL. In: a librdkafka
// queue and the addresses of three functions of the library that confluent-kafka has loaded.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace springtide {

// rd_kafka_message_t, which is part of librdkafka's public interface and has not changed since 0.9.
struct KafkaMessage {
  int error;
  void* topic;
  int32_t partition;
  const void* payload;
  size_t size;
  const void* key;
  size_t key_size;
  int64_t offset;
  void* hidden;
};

struct KafkaCalls {
  ssize_t (*consume_batch_queue)(void* queue, int timeout_ms, KafkaMessage** messages, size_t room);
  int64_t (*message_timestamp)(const KafkaMessage* message, int* kind);
  void (*message_destroy)(KafkaMessage* message);
};

struct MessageRun {
  int32_t partition;
  std::vector<uint8_t> payload;
  std::vector<int64_t> ends;
  std::vector<int64_t> offsets;
  std::vector<double> times;  // seconds; for a message without a timestamp, its time of arrival
};

struct MessageEvent {
  int32_t partition;
  int error;
  int64_t offset;
};

struct Consumed {
  std::vector<std::unique_ptr<MessageRun>> runs;
  std::vector<MessageEvent> news;
};

// Takes about `most` messages, and waits up to `timeout_ms` for the first message. A message without a value has no
// bytes.
Consumed consume(const KafkaCalls& calls, void* queue, size_t most, int timeout_ms);

}  // namespace springtide
