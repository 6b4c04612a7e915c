// Server: started, observed and stopped from Python.
#include "server/server.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>

#include "bindings/bindings.h"

namespace st = springtide;

namespace {

nb::dict stats_of(const st::Server& server) {
  const st::ServerStats stats = server.stats();
  nb::dict out;
  SPRINGTIDE_SERVER_COUNTS(SPRINGTIDE_ENTRY)
  out["applied_step"] = stats.applied_step;
  out["staleness_p50"] = stats.staleness_p50, out["staleness_max"] = stats.staleness_max;
  return out;
}

nb::dict hand_over(st::Server& server, const std::string& host, uint16_t port, uint16_t index,
                   const std::vector<uint16_t>& slots, double timeout_s, bool hurry) {
  st::HandoverOutcome o;
  {
    nb::gil_scoped_release release;
    o = server.hand_over({host, port, index, timeout_s, hurry}, slots);
  }
  nb::dict d;
  d["moved"] = o.moved, d["kept"] = o.kept, d["in_doubt"] = o.in_doubt, d["why"] = o.why;
  d["bytes"] = o.bytes, d["seconds"] = o.seconds, d["longest_freeze_s"] = o.longest_freeze_s;
  d["local"] = o.local;
  return d;
}

}  // namespace

void bind_server(nb::module_& m) {
  nb::class_<st::ServerOptions>(m, "ServerOptions")
      .def(nb::init<>())
      .def_rw("host", &st::ServerOptions::host)
      .def_rw("port", &st::ServerOptions::port)
      .def_prop_rw(
          "secret", [](const st::ServerOptions& o) { return nb::bytes(o.secret.data(), o.secret.size()); },
          [](st::ServerOptions& o, nb::bytes secret) { o.secret.assign(secret.c_str(), secret.size()); })
      .def_rw("tls", &st::ServerOptions::tls)
      .def_rw("index", &st::ServerOptions::index)
      .def_rw("workers", &st::ServerOptions::workers)
      .def_rw("shared_memory", &st::ServerOptions::shared_memory)
      .def_rw("max_frame_bytes", &st::ServerOptions::max_frame_bytes)
      .def_rw("stall_s", &st::ServerOptions::stall_s)
      .def_rw("step_wait_s", &st::ServerOptions::step_wait_s);
  nb::class_<st::Server>(m, "Server")
      .def(nb::init<st::Store&, const st::ServerOptions&>(), nb::keep_alive<1, 2>(), nb::arg("store"),
           nb::arg("options"))
      .def("start",
           [](st::Server& server) {
             {
               nb::gil_scoped_release release;
               server.start();
             }
             return std::pair(server.host(), server.port());
           })
      .def(
          "set_placement",
          [](st::Server& server, uint32_t epoch, TableArray owners) {
            server.set_placement(epoch, {owners.data(), owners.data() + owners.size()});
          },
          nb::arg("epoch"), nb::arg("owners").noconvert())
      .def(
          "learn_placement",
          [](st::Server& server, uint32_t epoch, TableArray owners, const std::map<uint16_t, std::string>& addresses) {
            server.learn_placement(epoch, {owners.data(), owners.data() + owners.size()}, addresses);
          },
          nb::arg("epoch"), nb::arg("owners").noconvert(), nb::arg("addresses"))
      .def("hand_over", &hand_over, nb::arg("host"), nb::arg("port"), nb::arg("server"), nb::arg("slots"),
           nb::arg("timeout_s") = 30.0, nb::arg("hurry") = false)
      .def("let_go", &st::Server::let_go, nb::arg("slot"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_no_more", &st::Server::take_no_more, nb::arg("yes"), nb::call_guard<nb::gil_scoped_release>())
      .def("expect_anew", &st::Server::expect_anew, nb::call_guard<nb::gil_scoped_release>())
      .def("take_back", &st::Server::take_back, nb::arg("slot"), nb::call_guard<nb::gil_scoped_release>())
      .def("owned", &st::Server::owned, nb::call_guard<nb::gil_scoped_release>())
      .def("set_generation", &st::Server::set_generation, nb::arg("generation"), nb::arg("workers"))
      .def("stats", &stats_of)
      .def("stop", &st::Server::stop, nb::arg("drain_s"), nb::call_guard<nb::gil_scoped_release>());
}
