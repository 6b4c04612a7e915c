// Bindings for records of data workers and streams: find distinct integers, read envelopes, read Kafka messages.
#include <nanobind/stl/pair.h>

#include "batch/distinct.h"
#include "batch/envelope.h"
#include "batch/message_columns.h"
#include "bindings/bindings.h"

using namespace springtide;

namespace {

void check_room(size_t records, size_t ends, size_t room) {
  throw_if<BadInput>(ends != records || room != records,
                     "envelopes: wanted as many ends, and as much room, as there are records");
}

KafkaCalls calls_at(const std::vector<uintptr_t>& places) {
  if (places.size() != 3) throw BadInput("librdkafka: wanted the places of three functions");
  KafkaCalls calls;
  calls.consume_batch_queue = reinterpret_cast<decltype(calls.consume_batch_queue)>(places[0]);
  calls.message_timestamp = reinterpret_cast<decltype(calls.message_timestamp)>(places[1]);
  calls.message_destroy = reinterpret_cast<decltype(calls.message_destroy)>(places[2]);
  return calls;
}

nb::tuple consume_messages(const std::vector<uintptr_t>& places, uintptr_t queue, size_t most, int timeout_ms) {
  const KafkaCalls calls = calls_at(places);
  Consumed found = released([&] { return consume(calls, reinterpret_cast<void*>(queue), most, timeout_ms); });
  nb::list runs, news;
  for (const auto& run : found.runs) {
    runs.append(nb::make_tuple(run->partition, to_numpy(std::move(run->payload)), to_numpy(std::move(run->ends)),
                               to_numpy(std::move(run->offsets)), to_numpy(std::move(run->times))));
  }
  for (const MessageEvent& one : found.news) news.append(nb::make_tuple(one.partition, one.error, one.offset));
  return nb::make_tuple(runs, news);
}

}  // namespace

void bind_records(nb::module_& m) {
  m.def(
      "distinct",
      [](KeyArray given, std::span<int64_t> values, std::span<int64_t> inverse, std::span<int64_t> counts) {
        const size_t all = given.size();
        const auto fits = [all](std::span<int64_t> one) { return one.size() == 0 || one.size() == all; };
        throw_if<BadInput>(values.size() != all || !fits(inverse) || !fits(counts) || all >> 32 != 0,
                           "room for distinct integers: wanted as much as are given, or none; fewer than 2^32");
        const DistinctOut out{values.data(), inverse.size() > 0 ? inverse.data() : nullptr,
                              counts.size() > 0 ? counts.data() : nullptr};
        return distinct(given, out);
      },
      "given"_a, "values"_a, "inverse"_a, "counts"_a, NoGil(),
      "How many distinct integers are given. They come rising at the begin of `values`, how often each was given in\n"
      "`counts`, and in `inverse` the place among them of each given; an empty array: not wanted.");
  m.def("is_distinct", &is_distinct, "given"_a, "values"_a, "inverse"_a, "counts"_a, NoGil(),
        "Return True if these are the distinct integers of `given`, ascending, with their inverse and counts.");
  m.def(
      "open_envelopes",
      [](ByteArray payload, KeyArray starts, KeyArray ends, std::span<uint8_t> states, std::span<int64_t> event_us) {
        check_room(starts.size(), ends.size(), states.size());
        check_room(starts.size(), ends.size(), event_us.size());
        const auto found = open_envelopes(payload, starts, ends, states.data(), event_us.data());
        return std::pair{found.bare, found.damaged};
      },
      "payload"_a, "starts"_a, "ends"_a, "states"_a, "event_us"_a, NoGil(),
      "How many records have no envelope, and of how many it is damaged. Of each: 0 none, 1 whole, 2 damaged; and the\n"
      "event time.");
  m.def(
      "crc32_each",
      [](ByteArray payload, KeyArray starts, KeyArray ends, std::span<uint32_t> out) {
        check_room(starts.size(), ends.size(), out.size());
        crc32_each(payload, starts, ends, out.data());
      },
      "payload"_a, "starts"_a, "ends"_a, "out"_a, NoGil(), "CRC-32, as zlib has it, of each run of bytes.");
  m.def(
      "consume_messages", &consume_messages, "places"_a, "queue"_a, "most"_a, "timeout_ms"_a,
      "What a queue of librdkafka has: (partition, payload, ends, offsets, times) a partition, and (partition, error,\n"
      "offset) of what is no record. `places`: addresses of consume_batch_queue, message_timestamp, message_destroy.");
}
