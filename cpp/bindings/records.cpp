// Columns of records for data workers and streams: distinct integers, envelopes, Kafka messages.
#include <nanobind/stl/pair.h>

#include "batch/distinct.h"
#include "batch/envelope.h"
#include "batch/message_columns.h"
#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

void check_room(size_t records, size_t ends, size_t room) {
  if (ends != records || room != records) {
    throw BadInput("envelopes: wanted as many ends, and as much room, as there are records");
  }
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
  Consumed found;
  {
    nb::gil_scoped_release release;
    found = consume(calls, reinterpret_cast<void*>(queue), most, timeout_ms);
  }
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
      [](KeyArray given, Array<int64_t> values, Array<int64_t> inverse, Array<int64_t> counts) {
        const size_t all = given.size();
        const auto fits = [all](const Array<int64_t>& one) { return one.size() == 0 || one.size() == all; };
        if (values.size() != all || !fits(inverse) || !fits(counts) || all >> 32 != 0) {
          throw BadInput("room for distinct integers: wanted as much as are given, or none; fewer than 2^32");
        }
        const DistinctOut out{values.data(), inverse.size() > 0 ? inverse.data() : nullptr,
                              counts.size() > 0 ? counts.data() : nullptr};
        nb::gil_scoped_release release;
        return distinct({given.data(), all}, out);
      },
      "given"_a.noconvert(), "values"_a.noconvert(), "inverse"_a.noconvert(), "counts"_a.noconvert(),
      "How many distinct integers are given. They come rising at the begin of `values`, how often each was given in\n"
      "`counts`, and in `inverse` the place among them of each given; an empty array: not wanted.");
  m.def(
      "open_envelopes",
      [](ByteArray payload, KeyArray starts, KeyArray ends, Array<uint8_t> states, Array<int64_t> event_us) {
        check_room(starts.size(), ends.size(), states.size());
        check_room(starts.size(), ends.size(), event_us.size());
        nb::gil_scoped_release release;
        const auto found =
            open_envelopes(span_of(payload), span_of(starts), span_of(ends), states.data(), event_us.data());
        return std::pair{found.bare, found.damaged};
      },
      "payload"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "states"_a.noconvert(),
      "event_us"_a.noconvert(),
      "How many records have no envelope, and of how many it is damaged. Of each: 0 none, 1 whole, 2 damaged; and the\n"
      "event time.");
  m.def(
      "crc32_each",
      [](ByteArray payload, KeyArray starts, KeyArray ends, Array<uint32_t> out) {
        check_room(starts.size(), ends.size(), out.size());
        nb::gil_scoped_release release;
        crc32_each(span_of(payload), span_of(starts), span_of(ends), out.data());
      },
      "payload"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "out"_a.noconvert(),
      "CRC-32, as zlib has it, of each run of bytes.");
  m.def(
      "consume_messages", &consume_messages, "places"_a, "queue"_a, "most"_a, "timeout_ms"_a,
      "What a queue of librdkafka has: (partition, payload, ends, offsets, times) a partition, and (partition, error,\n"
      "offset) of what is no record. `places`: addresses of consume_batch_queue, message_timestamp, message_destroy.");
}
