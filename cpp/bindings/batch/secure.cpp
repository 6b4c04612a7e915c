// TLS on a socket that Python owns (dataworker/transport/channel.py) and keeps open meanwhile.
#include <cerrno>

#include "base/types.h"
#include "bindings/batch/fused.h"
#include "net/tls_session.h"

using namespace nb::literals;
using namespace springtide;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct SecureSocket {
  SecureSocket(int socket, const std::string& folder, bool listens, const std::string& role, double within_s)
      : fd(socket), session(socket, {folder, listens ? TlsSide::listener : TlsSide::caller, role, within_s, true}) {}

  int fd;
  TlsSession session;
};

}  // namespace

void bind_secure(nb::module_& m) {
  nb::class_<SecureSocket>(m, "SecureSocket")
      .def(nb::init<int, const std::string&, bool, const std::string&, double>(), "socket"_a, "folder"_a, "listens"_a,
           "role"_a, "within_s"_a, nb::call_guard<nb::gil_scoped_release>(),
           "The handshake. ServerUnreachable says why the other side is not one to speak to.")
      .def(
          "set_timeout", [](SecureSocket& self, double s) { self.session.set_timeouts(s, s); }, "seconds"_a,
          "0: forever.")
      .def(
          "receive",
          [](SecureSocket& self, Bytes into) {
            nb::gil_scoped_release release;
            const Io io = self.session.receive(into.data(), into.size());
            if (io == Io::ok) return 0;
            return io == Io::closed || io == Io::torn ? -1 : io == Io::failed ? errno : ETIMEDOUT;
          },
          "into"_a.noconvert(), "Fill all of it; 0, -1 when the other side has closed, or an errno.")
      .def(
          "send_pieces",
          [](SecureSocket& self, nb::bytes prefix, nb::handle told, uint64_t payload) {
            const std::vector<Piece> pieces = read_pieces(told, payload);
            const std::span<const std::byte> first{static_cast<const std::byte*>(prefix.data()), prefix.size()};
            nb::gil_scoped_release release;
            return send_pieces(Line(self.fd, &self.session), first, pieces, -1);
          },
          "prefix"_a, "pieces"_a, "payload"_a, "Send a prefix and pieces; 0, or an errno.");
}
