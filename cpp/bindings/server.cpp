// Binds the server, so that Python can start, observe and stop it.
#include "server/server.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>

#include "bindings/bindings.h"

using namespace springtide;

namespace {

nb::dict stats_of(const Server& server) {
  const ServerStats stats = server.stats();
  nb::dict out;
  SPRINGTIDE_SERVER_COUNTS(SPRINGTIDE_ENTRY)
  out["applied_step"] = stats.applied_step;
  out["staleness_p50"] = stats.staleness_p50, out["staleness_max"] = stats.staleness_max;
  return out;
}

nb::dict hand_over_slots(Server& server, const std::string& host, uint16_t port, uint16_t index,
                         const std::vector<uint16_t>& slots, double timeout_s, bool hurry) {
  const HandoverOutcome o = released([&] { return server.hand_over({host, port, index, timeout_s, hurry}, slots); });
  nb::dict d;
  d["moved"] = o.moved, d["kept"] = o.kept, d["in_doubt"] = o.in_doubt, d["why"] = o.why;
  d["bytes"] = o.bytes, d["seconds"] = o.seconds, d["longest_freeze_s"] = o.longest_freeze_s;
  d["local"] = o.local;
  return d;
}

}  // namespace

void bind_server(nb::module_& m) {
  nb::class_<ServerOptions>(m, "ServerOptions")
      .def(nb::init<>())
      .def_rw("host", &ServerOptions::host)
      .def_rw("port", &ServerOptions::port)
      .def_prop_rw(
          "secret", [](const ServerOptions& o) { return nb::bytes(o.secret.data(), o.secret.size()); },
          [](ServerOptions& o, nb::bytes secret) { o.secret.assign(secret.c_str(), secret.size()); })
      .def_rw("tls", &ServerOptions::tls)
      .def_rw("index", &ServerOptions::index)
      .def_rw("workers", &ServerOptions::workers)
      .def_rw("shared_memory", &ServerOptions::shared_memory)
      .def_rw("max_frame_bytes", &ServerOptions::max_frame_bytes)
      .def_rw("stall_s", &ServerOptions::stall_s)
      .def_rw("step_wait_s", &ServerOptions::step_wait_s);
  nb::class_<Server>(m, "Server")
      .def(nb::init<Store&, const ServerOptions&>(), nb::keep_alive<1, 2>(), "store"_a, "options"_a)
      .def("start",
           [](Server& server) {
             released([&] { server.start(); });
             return std::pair(server.host(), server.port());
           })
      .def("set_placement", &Server::set_placement, "epoch"_a, "owners"_a)
      .def("learn_placement", &Server::learn_placement, "epoch"_a, "owners"_a, "addresses"_a)
      .def("hand_over", &hand_over_slots, "host"_a, "port"_a, "server"_a, "slots"_a, "timeout_s"_a = 30.0,
           "hurry"_a = false)
      .def("let_go", &Server::let_go, "slot"_a, NoGil())
      .def("take_no_more", &Server::take_no_more, "yes"_a, NoGil())
      .def("expect_anew", &Server::expect_anew, NoGil())
      .def("take_back", &Server::take_back, "slot"_a, NoGil())
      .def("owned", &Server::owned, NoGil())
      .def("set_generation", &Server::set_generation, "generation"_a, "workers"_a)
      .def("stats", &stats_of)
      .def("stop", &Server::stop, "drain_s"_a, NoGil());
}
