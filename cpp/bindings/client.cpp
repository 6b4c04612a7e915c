// Backends and pending requests. Rows of a step: step.cpp.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "client/local_backend.h"
#include "client/remote_backend.h"
#include "step/backend.h"

using namespace springtide;

namespace {

using HyperTuple = std::tuple<uint16_t, float, float, uint64_t>;  // table, lr, weight decay, step

PushMeta push_meta(uint64_t step, bool bsp, bool unique, uint64_t clock, const std::vector<BatchTuple>& batches,
                   const std::vector<HyperTuple>& hyper) {
  PushMeta meta;
  meta.step = step;
  meta.bsp = bsp;
  meta.unique = unique;
  meta.clock = clock;
  meta.batches = batches_of(batches);
  for (const auto& [table, lr, decay, count] : hyper)
    meta.hyper.push_back({.table = table, .lr = lr, .weight_decay = decay, .step = count});
  return meta;
}

PyPending push(Backend& backend, const std::vector<PyPart>& parts, uint64_t step, bool bsp, bool unique, uint64_t clock,
               const std::vector<BatchTuple>& batches, const std::vector<HyperTuple>& hyper) {
  PushMeta meta = push_meta(step, bsp, unique, clock, batches, hyper);
  PyPending pending;
  std::vector<Part> native;
  for (const PyPart& part : parts) {
    pending.sets.push_back(part.set());
    native.push_back(part.push_part());
    const auto basis = part.set()->basis();
    meta.seen.resize(std::max(meta.seen.size(), basis.size()), kNotSeen);
    for (size_t s = 0; s < basis.size(); ++s) meta.seen[s] = std::min(meta.seen[s], basis[s]);
  }
  pending.pending = backend.push(native, meta);
  return pending;
}

void assign(Backend& backend, const std::vector<PyPart>& parts, bool keep) {
  std::vector<Part> native;
  for (const PyPart& part : parts) native.push_back(part.set()->assign_part());
  backend.assign(native, keep);
}

nb::tuple scan(Backend& backend, uint16_t table) {
  std::vector<Key> keys;
  std::vector<float> rows;
  released([&] { return backend.scan(table, keys, rows); });
  return nb::make_tuple(to_numpy(std::move(keys)), to_numpy(std::move(rows)));
}

void bind_backend(nb::module_& m) {
  nb::class_<Backend>(m, "Backend")
      .def(
          "declare", [](Backend& backend, const std::vector<TableSpec>& tables) { return backend.declare(tables); },
          "tables"_a, NoGil())
      .def("push", &push, "parts"_a, "step"_a, "bsp"_a, "unique"_a, "clock"_a, "batches"_a, "hyper"_a, NoGil())
      .def("assign", &assign, "parts"_a, "keep"_a = false, NoGil())
      .def("scan", &scan, "table"_a)
      .def_prop_ro("servers", [](const Backend& backend) { return backend.placement()->servers; })
      .def_prop_ro("slots", [](const Backend& backend) { return backend.placement()->server_of_slot.size(); });
}

void make_remote(RemoteBackend* self, std::vector<std::string> hosts, std::vector<uint16_t> ports, nb::bytes secret,
                 std::vector<uint16_t> server_of_slot, uint32_t epoch, uint32_t rank, uint32_t incarnation,
                 uint32_t generation, double connect_timeout_s, double request_timeout_s, double reconnect_s,
                 bool shared_memory, double recovery_s, std::vector<uint32_t> lives, std::string tls) {
  RemoteOptions options;
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
  new (self) RemoteBackend(options);
}

nb::dict remote_stats(const RemoteBackend& backend) {
  const RemoteStats stats = backend.stats();
  nb::dict out;
  SPRINGTIDE_REMOTE_STATS(SPRINGTIDE_ENTRY)
  out["transports"] = stats.transports;
  return out;
}

PyPending apply_step(RemoteBackend& backend, uint64_t step) {
  PyPending pending;
  pending.pending = backend.apply_step(step);
  return pending;
}

void bind_remote(nb::module_& m) {
  nb::class_<RemoteBackend, Backend>(m, "RemoteBackend")
      .def("__init__", &make_remote, nb::kw_only(), "hosts"_a, "ports"_a, "secret"_a, "server_of_slot"_a, "epoch"_a,
           "rank"_a, "incarnation"_a, "generation"_a, "connect_timeout_s"_a, "request_timeout_s"_a,
           "reconnect_s"_a = 5.0, "shared_memory"_a, "recovery_s"_a = 0.0, "lives"_a = std::vector<uint32_t>(),
           "tls"_a = "")
      .def("readdress", &RemoteBackend::readdress, "server"_a, "life"_a, "host"_a, "port"_a, NoGil())
      .def(
          "reroute",
          [](RemoteBackend& backend, uint32_t epoch, std::vector<uint16_t> server_of_slot,
             const std::map<uint16_t, std::string>& addresses) {
            backend.reroute({epoch, std::move(server_of_slot), 0}, addresses);
          },
          "epoch"_a, "server_of_slot"_a, "addresses"_a = std::map<uint16_t, std::string>(), NoGil())
      .def_prop_ro("epoch", [](const RemoteBackend& backend) { return backend.placement()->epoch; })
      .def("owners", [](const RemoteBackend& backend) { return backend.placement()->server_of_slot; })
      .def("step_complete", &RemoteBackend::step_complete, "step"_a, "wait_s"_a, NoGil())
      .def("apply_step", &apply_step, "step"_a, NoGil())
      .def("set_generation", &RemoteBackend::set_generation, "generation"_a)
      .def("regroup", &RemoteBackend::regroup, NoGil())
      .def("settle_group", &RemoteBackend::settle_group, "step"_a, "workers"_a, "at_rest"_a = false, NoGil())
      .def("stats", &remote_stats);
}

}  // namespace

void bind_client(nb::module_& m) {
  nb::class_<PyPending>(m, "Pending").def("wait", &PyPending::wait, NoGil()).def("done", [](PyPending& pending) {
    return !pending.pending || pending.pending->done();
  });
  bind_backend(m);
  nb::class_<LocalBackend, Backend>(m, "LocalBackend")
      .def(
          "__init__",
          [](LocalBackend* self, uint32_t slots, uint64_t seed, uint32_t threads, uint16_t servers) {
            new (self) LocalBackend({.slots = slots, .seed = seed, .threads = threads}, servers);
          },
          "slots"_a, "seed"_a, "threads"_a, "servers"_a)
      .def("store", &LocalBackend::store, "server"_a, nb::rv_policy::reference_internal);
  bind_remote(m);
  bind_step(m);
}
