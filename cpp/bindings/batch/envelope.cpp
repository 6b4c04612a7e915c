// Envelopes of records. Python allocates the outputs; the payload may be a read-only mapped file.
#include "batch/envelope.h"

#include <nanobind/stl/pair.h>

#include "base/types.h"
#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

using Payload = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Times = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_room(size_t records, size_t ends, size_t room) {
  if (ends != records || room != records) {
    throw BadInput("envelopes: wanted as many ends, and as much room, as there are records");
  }
}

}  // namespace

void bind_envelope(nb::module_& m) {
  m.def(
      "open_envelopes",
      [](Payload payload, KeyArray starts, KeyArray ends, States states, Times event_us) {
        check_room(starts.size(), ends.size(), states.size());
        check_room(starts.size(), ends.size(), event_us.size());
        nb::gil_scoped_release release;
        const auto found = open_envelopes({payload.data(), payload.size()}, {starts.data(), starts.size()},
                                          {ends.data(), ends.size()}, states.data(), event_us.data());
        return std::pair{found.bare, found.damaged};
      },
      "payload"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "states"_a.noconvert(),
      "event_us"_a.noconvert(),
      "How many records have no envelope, and of how many it is damaged. Of each: 0 none, 1 whole, 2 "
      "damaged; "
      "and the event time.");
  m.def(
      "crc32_each",
      [](Payload payload, KeyArray starts, KeyArray ends, Sums out) {
        check_room(starts.size(), ends.size(), out.size());
        nb::gil_scoped_release release;
        crc32_each({payload.data(), payload.size()}, {starts.data(), starts.size()}, {ends.data(), ends.size()},
                   out.data());
      },
      "payload"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "out"_a.noconvert(),
      "CRC-32, as zlib has it, of each run of bytes.");
}
