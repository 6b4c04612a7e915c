// Kafka messages as arrays. Python passes the addresses of librdkafka's functions.
#include "batch/message_columns.h"
#include "bindings/bindings.h"
#include "bindings/step.h"

using namespace nb::literals;
using namespace springtide;

namespace {

template <typename T>
auto array_of(std::vector<T>& values) {
  return owned_array(std::make_unique<std::vector<T>>(std::move(values)));
}

KafkaCalls calls_at(const std::vector<uintptr_t>& places) {
  if (places.size() != 3) throw BadInput("librdkafka: wanted the places of three functions");
  KafkaCalls calls;
  calls.consume_batch_queue = reinterpret_cast<decltype(calls.consume_batch_queue)>(places[0]);
  calls.message_timestamp = reinterpret_cast<decltype(calls.message_timestamp)>(places[1]);
  calls.message_destroy = reinterpret_cast<decltype(calls.message_destroy)>(places[2]);
  return calls;
}

}  // namespace

void bind_messages(nb::module_& m) {
  m.def(
      "consume_messages",
      [](const std::vector<uintptr_t>& places, uintptr_t queue, size_t most, int timeout_ms) {
        const KafkaCalls calls = calls_at(places);
        Consumed found;
        {
          nb::gil_scoped_release release;
          found = consume(calls, reinterpret_cast<void*>(queue), most, timeout_ms);
        }
        nb::list runs, news;
        for (const auto& run : found.runs) {
          runs.append(nb::make_tuple(run->partition, array_of(run->payload), array_of(run->ends),
                                     array_of(run->offsets), array_of(run->times)));
        }
        for (const MessageEvent& one : found.news) {
          news.append(nb::make_tuple(one.partition, one.error, one.offset));
        }
        return nb::make_tuple(runs, news);
      },
      "places"_a, "queue"_a, "most"_a, "timeout_ms"_a,
      "What a queue of librdkafka has: (partition, payload, ends, offsets, times) a partition, and "
      "(partition, "
      "error,\n"
      "offset) of what is no record. `places`: addresses of consume_batch_queue, message_timestamp, "
      "message_destroy.");
}
