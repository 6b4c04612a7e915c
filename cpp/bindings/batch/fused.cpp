// Pieces of a batch: Python owns the memory and passes (offset, address, size) of each.
#include "bindings/batch/fused.h"

#include <cerrno>

#include "base/types.h"
#include "batch/batch_receive.h"
#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

std::vector<Piece> listed(nb::list told) {
  std::vector<Piece> pieces;
  pieces.reserve(told.size());
  for (nb::handle one : told) {
    const auto fields = nb::cast<nb::tuple>(one);
    if (fields.size() != 3) throw BadInput("a piece: wanted (offset, address, size)");
    pieces.push_back({nb::cast<uint64_t>(fields[0]), reinterpret_cast<const std::byte*>(nb::cast<uintptr_t>(fields[1])),
                      nb::cast<uint64_t>(fields[2])});
  }
  return pieces;
}

nb::list told(const Pieces& pieces) {
  nb::list all;
  for (const Piece& one : pieces.all) {
    all.append(nb::make_tuple(one.offset, reinterpret_cast<uintptr_t>(one.data), one.size));
  }
  return all;
}

}  // namespace

std::vector<Piece> read_pieces(nb::handle told, uint64_t capacity) {
  std::vector<Piece> pieces =
      nb::isinstance<Pieces>(told) ? nb::cast<const Pieces&>(told).all : listed(nb::cast<nb::list>(told));
  if (!pieces_fit(pieces, capacity)) {
    throw BadInput("pieces that overlap, or end after the " + std::to_string(capacity) + " bytes that there are");
  }
  return pieces;
}

namespace {

std::span<const std::byte> span_of(const nb::bytes& data) {
  return {static_cast<const std::byte*>(data.data()), data.size()};
}

nb::bytes bytes_of(std::span<const std::byte> data) { return nb::bytes(data.data(), data.size()); }

nb::tuple receive(int socket, nb::bytes begins, uint32_t most_fields, uint32_t most_header, nb::bytes header,
                  uintptr_t into, uint64_t size) {
  const Expected expected{
      span_of(begins), most_fields, most_header, span_of(header), {reinterpret_cast<std::byte*>(into), size}};
  ReceivedMessage taken;
  {
    nb::gil_scoped_release release;
    taken = receive_message(socket, expected);
  }
  const std::span<const std::byte> text = taken.text;
  const bool read = taken.came != ReceivedMessage::Progress::head && taken.error == 0;
  const size_t fields = read ? taken.head.fields() : 0;
  return nb::make_tuple(taken.error, bytes_of(taken.head.bytes), bytes_of(text.first(fields)),
                        bytes_of(text.subspan(fields)), taken.came == ReceivedMessage::Progress::whole);
}

}  // namespace

void bind_fused(nb::module_& m) {
  nb::class_<Pieces>(m, "Pieces", "Buffers that make up one payload.")
      .def("told", &told, "(offset, address, size) of each.");
  m.def(
      "gather_pieces",
      [](nb::handle told, uintptr_t into, uint64_t capacity) {
        const std::vector<Piece> pieces = read_pieces(told, capacity);
        nb::gil_scoped_release release;
        gather(pieces, reinterpret_cast<std::byte*>(into));
      },
      "pieces"_a, "into"_a, "capacity"_a, "Copy (offset, address, size) pieces to their places at an address.");
  m.def(
      "send_pieces",
      [](int socket, nb::bytes prefix, nb::handle told, uint64_t payload, int passed) {
        const std::vector<Piece> pieces = read_pieces(told, payload);
        const std::span<const std::byte> first{static_cast<const std::byte*>(prefix.data()), prefix.size()};
        nb::gil_scoped_release release;
        return send_pieces(socket, first, pieces, passed);
      },
      "socket"_a, "prefix"_a, "pieces"_a, "payload"_a, "passed"_a = -1,
      "Send a prefix and pieces over a blocking socket, a file descriptor with them; 0, or an errno.");
  m.def("receive_message", &receive, "socket"_a, "begins"_a, "most_fields"_a, "most_header"_a, "header"_a, "into"_a,
        "size"_a,
        "The next message of a blocking socket: an errno (0: none, -1: closed), head, fields, header, and "
        "whether "
        "its payload is at `into`: if header and size are as told. Nothing after the head: it is not one of "
        "ours.");
}
