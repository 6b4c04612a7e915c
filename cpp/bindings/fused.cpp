// Pieces of a batch: Python holds what they belong to and hands over (offset, address, size) for each.
#include "fused.h"

#include <cerrno>

#include "bindings.h"
#include "types.h"

using namespace nb::literals;
using namespace springtide;

std::vector<Piece> read_pieces(nb::list told, uint64_t capacity) {
  std::vector<Piece> pieces;
  pieces.reserve(told.size());
  for (nb::handle one : told) {
    const auto fields = nb::cast<nb::tuple>(one);
    if (fields.size() != 3) throw BadInput("a piece: wanted (offset, address, size)");
    pieces.push_back({nb::cast<uint64_t>(fields[0]),
                      reinterpret_cast<const std::byte*>(nb::cast<uintptr_t>(fields[1])),
                      nb::cast<uint64_t>(fields[2])});
  }
  if (!pieces_fit(pieces, capacity)) {
    throw BadInput("pieces that overlap, or end after the " + std::to_string(capacity) +
                   " bytes that there are");
  }
  return pieces;
}

void bind_fused(nb::module_& m) {
  m.def(
      "gather_pieces",
      [](nb::list told, uintptr_t into, uint64_t capacity) {
        const std::vector<Piece> pieces = read_pieces(told, capacity);
        nb::gil_scoped_release release;
        gather(pieces, reinterpret_cast<std::byte*>(into));
      },
      "pieces"_a, "into"_a, "capacity"_a,
      "Copy (offset, address, size) pieces to their places at an address.");
  m.def(
      "send_pieces",
      [](int socket, nb::bytes prefix, nb::list told, uint64_t payload, int passed) {
        const std::vector<Piece> pieces = read_pieces(told, payload);
        const std::span<const std::byte> first{static_cast<const std::byte*>(prefix.data()), prefix.size()};
        nb::gil_scoped_release release;
        return send_pieces(socket, first, pieces, passed);
      },
      "socket"_a, "prefix"_a, "pieces"_a, "payload"_a, "passed"_a = -1,
      "Send a prefix and pieces over a blocking socket, a file descriptor with them; 0, or an errno.");
}
