// Backends and pending requests. Rows of a step: step.cpp.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "client/local_backend.h"
#include "client/remote_backend.h"
#include "step/backend.h"

namespace st = springtide;

namespace {

using HyperTuple = std::tuple<uint16_t, float, float, uint64_t>;  // table, lr, weight decay, step

st::PushMeta push_meta(uint64_t step, bool bsp, bool unique, uint64_t clock, const std::vector<BatchTuple>& batches,
                       const std::vector<HyperTuple>& hyper) {
  st::PushMeta meta;
  meta.step = step;
  meta.bsp = bsp;
  meta.unique = unique;
  meta.clock = clock;
  meta.batches = batches_of(batches);
  for (const auto& [table, lr, decay, count] : hyper)
    meta.hyper.push_back({.table = table, .lr = lr, .weight_decay = decay, .step = count});
  return meta;
}

PyPending push(st::Backend& backend, const std::vector<PyPart>& parts, uint64_t step, bool bsp, bool unique,
               uint64_t clock, const std::vector<BatchTuple>& batches, const std::vector<HyperTuple>& hyper) {
  st::PushMeta meta = push_meta(step, bsp, unique, clock, batches, hyper);
  nb::gil_scoped_release release;
  PyPending pending;
  std::vector<st::Part> native;
  for (const PyPart& part : parts) {
    pending.sets.push_back(part.set());
    native.push_back(part.push_part());
    const auto basis = part.set()->basis();
    meta.seen.resize(std::max(meta.seen.size(), basis.size()), st::kNotSeen);
    for (size_t s = 0; s < basis.size(); ++s) meta.seen[s] = std::min(meta.seen[s], basis[s]);
  }
  pending.pending = backend.push(native, meta);
  return pending;
}

void assign(st::Backend& backend, const std::vector<PyPart>& parts, bool keep) {
  nb::gil_scoped_release release;
  std::vector<st::Part> native;
  for (const PyPart& part : parts) native.push_back(part.set()->assign_part());
  backend.assign(native, keep);
}

nb::tuple scan(st::Backend& backend, uint16_t table) {
  std::vector<st::Key> keys;
  std::vector<float> rows;
  {
    nb::gil_scoped_release release;
    backend.scan(table, keys, rows);
  }
  return nb::make_tuple(to_numpy(std::move(keys)), to_numpy(std::move(rows)));
}

void bind_backend(nb::module_& m) {
  nb::class_<st::Backend>(m, "Backend")
      .def(
          "declare",
          [](st::Backend& backend, const std::vector<st::TableSpec>& tables) {
            nb::gil_scoped_release release;
            backend.declare(tables);
          },
          nb::arg("tables"))
      .def("push", &push, nb::arg("parts"), nb::arg("step"), nb::arg("bsp"), nb::arg("unique"), nb::arg("clock"),
           nb::arg("batches"), nb::arg("hyper"))
      .def("assign", &assign, nb::arg("parts"), nb::arg("keep") = false)
      .def("scan", &scan, nb::arg("table"))
      .def_prop_ro("servers", [](const st::Backend& backend) { return backend.placement()->servers; })
      .def_prop_ro("slots", [](const st::Backend& backend) { return backend.placement()->server_of_slot.size(); });
}

void make_remote(st::RemoteBackend* self, std::vector<std::string> hosts, std::vector<uint16_t> ports, nb::bytes secret,
                 std::vector<uint16_t> server_of_slot, uint32_t epoch, uint32_t rank, uint32_t incarnation,
                 uint32_t generation, double connect_timeout_s, double request_timeout_s, double reconnect_s,
                 bool shared_memory, double recovery_s, std::vector<uint32_t> lives, std::string tls) {
  st::RemoteOptions options;
  options.placement = {epoch, std::move(server_of_slot), static_cast<uint16_t>(hosts.size())};
  options.hosts = std::move(hosts);
  options.ports = std::move(ports);
  options.secret.assign(secret.c_str(), secret.size());
  options.rank = rank;
  options.incarnation = incarnation;
  options.connect_timeout_s = connect_timeout_s;
  options.request_timeout_s = request_timeout_s;
  options.reconnect_s = reconnect_s;
  options.shared_memory = shared_memory;
  options.generation = generation;
  options.recovery_s = recovery_s;
  options.lives = std::move(lives);
  options.tls = std::move(tls);
  nb::gil_scoped_release release;
  new (self) st::RemoteBackend(options);
}

nb::dict remote_stats(const st::RemoteBackend& backend) {
  const st::RemoteStats stats = backend.stats();
  nb::dict out;
  SPRINGTIDE_REMOTE_STATS(SPRINGTIDE_ENTRY)
  out["transports"] = stats.transports;
  return out;
}

PyPending apply_step(st::RemoteBackend& backend, uint64_t step) {
  nb::gil_scoped_release release;
  PyPending pending;
  pending.pending = backend.apply_step(step);
  return pending;
}

void bind_remote(nb::module_& m) {
  nb::class_<st::RemoteBackend, st::Backend>(m, "RemoteBackend")
      .def("__init__", &make_remote, nb::kw_only(), nb::arg("hosts"), nb::arg("ports"), nb::arg("secret"),
           nb::arg("server_of_slot"), nb::arg("epoch"), nb::arg("rank"), nb::arg("incarnation"), nb::arg("generation"),
           nb::arg("connect_timeout_s"), nb::arg("request_timeout_s"), nb::arg("reconnect_s") = 5.0,
           nb::arg("shared_memory"), nb::arg("recovery_s") = 0.0, nb::arg("lives") = std::vector<uint32_t>(),
           nb::arg("tls") = "")
      .def(
          "readdress",
          [](st::RemoteBackend& backend, size_t server, uint32_t life, const std::string& host, uint16_t port) {
            nb::gil_scoped_release release;
            backend.readdress(server, life, host, port);
          },
          nb::arg("server"), nb::arg("life"), nb::arg("host"), nb::arg("port"))
      .def(
          "reroute",
          [](st::RemoteBackend& backend, uint32_t epoch, std::vector<uint16_t> server_of_slot,
             const std::map<uint16_t, std::string>& addresses) {
            nb::gil_scoped_release release;
            backend.reroute({epoch, std::move(server_of_slot), 0}, addresses);
          },
          nb::arg("epoch"), nb::arg("server_of_slot"), nb::arg("addresses") = std::map<uint16_t, std::string>())
      .def_prop_ro("epoch", [](const st::RemoteBackend& backend) { return backend.placement()->epoch; })
      .def("owners", [](const st::RemoteBackend& backend) { return backend.placement()->server_of_slot; })
      .def("step_complete", &st::RemoteBackend::step_complete, nb::arg("step"), nb::arg("wait_s"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("apply_step", &apply_step, nb::arg("step"))
      .def("set_generation", &st::RemoteBackend::set_generation, nb::arg("generation"))
      .def("regroup", &st::RemoteBackend::regroup, nb::call_guard<nb::gil_scoped_release>())
      .def("settle_group", &st::RemoteBackend::settle_group, nb::arg("step"), nb::arg("workers"),
           nb::arg("at_rest") = false, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &remote_stats);
}

}  // namespace

void bind_client(nb::module_& m) {
  nb::class_<PyPending>(m, "Pending")
      .def("wait", &PyPending::wait, nb::call_guard<nb::gil_scoped_release>())
      .def("done", [](PyPending& pending) { return !pending.pending || pending.pending->done(); });
  bind_backend(m);
  nb::class_<st::LocalBackend, st::Backend>(m, "LocalBackend")
      .def(
          "__init__",
          [](st::LocalBackend* self, uint32_t slots, uint64_t seed, uint32_t threads, uint16_t servers) {
            new (self) st::LocalBackend({.slots = slots, .seed = seed, .threads = threads}, servers);
          },
          nb::arg("slots"), nb::arg("seed"), nb::arg("threads"), nb::arg("servers"))
      .def("store", &st::LocalBackend::store, nb::arg("server"), nb::rv_policy::reference_internal);
  bind_remote(m);
  bind_step(m);
}
