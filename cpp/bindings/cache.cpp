// Worker caches, and the Scheduler that plans them. Pulls and pushes go through step.cpp and client.cpp. Scheduling
// releases the GIL.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "cache/cached_backend.h"
#include "cache/versioned_backend.h"
#include "schedule/schedule.h"

using namespace springtide;

namespace {

nb::list arrays_of(std::vector<CachedBackend::RankBuffer> parcels) {
  nb::list out;
  for (auto& parcel : parcels) out.append(nb::make_tuple(parcel.peer, to_numpy(std::move(parcel.floats))));
  return out;
}

void bind_versioned(nb::module_& m) {
  nb::class_<VersionedBackend, CachingBackend>(m, "VersionedBackend")
      .def(
          "__init__",
          [](VersionedBackend* self, std::shared_ptr<Backend> inner, uint64_t capacity_bytes, uint32_t staleness) {
            new (self) VersionedBackend(std::move(inner), {capacity_bytes, staleness});
          },
          "inner"_a, nb::kw_only(), "capacity_bytes"_a, "staleness"_a = 0)
      .def("resize", &VersionedBackend::resize, "capacity_bytes"_a)
      .def("clear", &VersionedBackend::clear)
      .def("stats", SPRINGTIDE_STATS(VersionedBackend, SPRINGTIDE_VERSIONED_STATS));
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<CachingBackend, Backend>(m, "CachingBackend")
      .def_prop_ro("inner", &CachingBackend::inner)
      .def(
          "cache_tables", [](CachingBackend& cache, const std::vector<TableId>& tables) { cache.cache_tables(tables); },
          "tables"_a)
      .def("image_bytes", &CachingBackend::image_bytes, "table"_a);
  bind_versioned(m);
  nb::class_<CachedBackend, CachingBackend>(m, "CachedBackend")
      .def(nb::init<std::shared_ptr<Backend>>(), "inner"_a)
      .def_static(
          "cacheable", [](const TableSpec& spec) { return CachedTables::refusal_of(spec).empty(); }, "spec"_a)
      .def(
          "set_plan", [](CachedBackend& cache, uint64_t step, const CachePlan& plan) { cache.set_plan(step, plan); },
          "step"_a, "plan"_a)
      .def("move_plan", &CachedBackend::move_plan, "step"_a, "to"_a)
      .def("flush_next", &CachedBackend::flush_next)
      .def("clear", &CachedBackend::clear)
      .def(
          "sends", [](CachedBackend& cache, uint64_t step) { return arrays_of(cache.sends(step)); }, "step"_a)
      .def("receives", &CachedBackend::receives, "step"_a)
      .def("received", &CachedBackend::received, "step"_a, "peer"_a, "floats"_a)
      .def(
          "gradient_sends",
          [](const CachedBackend& cache, uint64_t step, const std::vector<PyPart>& parts) {
            std::vector<Part> native;
            for (const PyPart& part : parts) native.push_back(part.push_part());
            return arrays_of(cache.gradient_sends(step, native));
          },
          "step"_a, "parts"_a)
      .def("gradient_receives", &CachedBackend::gradient_receives, "step"_a)
      .def("gradients_received", &CachedBackend::gradients_received, "step"_a, "peer"_a, "floats"_a)
      .def("stats", SPRINGTIDE_STATS(CachedBackend, SPRINGTIDE_CACHE_STATS));
}

namespace {

constexpr std::array<const char*, 3> kP2P{"off", "rows", "gradients"};
using Ids = nb::ndarray<const Key, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Feature = std::tuple<TableId, Ids, std::optional<Ids>>;

nb::tuple pairs(const PlanKeys& keys) { return nb::make_tuple(to_numpy(keys.tables), to_numpy(keys.keys)); }

nb::list peers(const std::vector<PeerRows>& all) {
  nb::list found;
  for (const PeerRows& one : all) found.append(nb::make_tuple(one.peer, pairs(one.rows)));
  return found;
}

std::vector<BatchFeature> spans_of(const std::vector<Feature>& features) {
  std::vector<BatchFeature> spans;
  for (const auto& [table, ids, offsets] : features) {
    BatchFeature one{table, {ids.data(), ids.size()}, {}};
    if (offsets) one.offsets = {offsets->data(), offsets->size()};
    spans.push_back(one);
  }
  return spans;
}

Scheduled schedule(Scheduler& scheduler, const std::vector<Feature>& features, uint32_t samples,
                   const std::vector<TableId>& scored, uint32_t best_tables, uint32_t effort) {
  const std::vector<BatchFeature> spans = spans_of(features);
  return released([&] { return scheduler.schedule(spans, samples, {scored, best_tables, effort}); });
}

Considered consider(Scheduler& scheduler, const std::vector<Feature>& features, uint32_t samples,
                    const std::string& policy, const std::vector<TableId>& scored, uint32_t effort) {
  const std::vector<BatchFeature> spans = spans_of(features);
  nb::gil_scoped_release release;
  return scheduler.consider(spans, samples, policy, {.scored = scored, .effort = effort});
}

// Rows of one worker's cache, the next to be evicted first: tables, keys, and whether only this worker has the latest
// row.
nb::tuple cached(const Scheduler& scheduler, uint32_t worker) {
  if (worker >= scheduler.options().workers) throw BadInput("worker ", worker, " of ", scheduler.options().workers);
  PlanKeys keys;
  std::vector<uint8_t> dirty;
  for (RowAt at : scheduler.directory().order_of(worker)) {
    const Directory::Row& row = scheduler.directory().row(at);
    keys.add(row.table, row.key);
    dirty.push_back(scheduler.dirty(row));
  }
  return nb::make_tuple(to_numpy(keys.tables), to_numpy(keys.keys), to_numpy(dirty));
}

void bind_plan(nb::module_& m) {
  nb::class_<CachePlan>(m, "CachePlan")
      .def_ro("step", &CachePlan::step)
      .def_ro("rank", &CachePlan::rank)
      .def_prop_ro("write_back", [](const CachePlan& p) { return pairs(p.write_back); })
      .def_prop_ro("drop", [](const CachePlan& p) { return pairs(p.drop); })
      .def_prop_ro("hold_hit", [](const CachePlan& p) { return pairs(p.hold_hit); })
      .def_prop_ro("hold_pull", [](const CachePlan& p) { return pairs(p.hold_pull); })
      .def_prop_ro("pass_hit", [](const CachePlan& p) { return pairs(p.pass_hit); })
      .def_prop_ro("pass_pull", [](const CachePlan& p) { return pairs(p.pass_pull); })
      .def_prop_ro("sends", [](const CachePlan& p) { return peers(p.sends); })
      .def_prop_ro("receives", [](const CachePlan& p) { return peers(p.receives); })
      .def_prop_ro("value_sends", [](const CachePlan& p) { return peers(p.value_sends); })
      .def_prop_ro("value_receives", [](const CachePlan& p) { return peers(p.value_receives); })
      .def_prop_ro("gradient_sends", [](const CachePlan& p) { return peers(p.gradient_sends); })
      .def_prop_ro("gradient_receives", [](const CachePlan& p) { return peers(p.gradient_receives); })
      .def_prop_ro("pulls", &CachePlan::pulls)
      .def_prop_ro("gradients", &CachePlan::gradients)
      .def_prop_ro("write_backs", [](const CachePlan& p) { return p.write_back.size(); })
      .def_prop_ro("sent", &CachePlan::sent)
      .def_prop_ro("received", &CachePlan::received)
      .def_prop_ro("gradients_received", [](const CachePlan& p) { return CachePlan::rows_of(p.gradient_receives); })
      .def_prop_ro("hits", &CachePlan::hits);
  nb::class_<Scheduled>(m, "Scheduled")
      .def_ro("step", &Scheduled::step)
      .def_ro("distinct", &Scheduled::distinct)
      .def_prop_ro("rank_of_sample", [](const Scheduled& s) { return to_numpy(s.rank_of_sample); })
      .def_ro("plans", &Scheduled::plans)
      .def_prop_ro("seconds", [](const Scheduled& s) {
        static constexpr const char* kNames[kStages] = {"read", "profile", "look_up", "allocate", "plan", "snapshot"};
        nb::dict found;
        for (size_t stage = 0; stage < kStages; ++stage) found[kNames[stage]] = s.seconds[stage];
        return found;
      });
}

}  // namespace

void bind_schedule(nb::module_& m) {
  bind_plan(m);
  nb::class_<Considered>(m, "Considered")
      .def_prop_ro("rank_of_sample", [](const Considered& c) { return to_numpy(c.rank_of_sample); })
      .def_ro("transmissions", &Considered::transmissions);
  nb::class_<Scheduler>(m, "Scheduler")
      .def(
          "__init__",
          [](Scheduler* self, uint32_t workers, uint64_t capacity_rows, const std::string& policy, uint64_t seed,
             const std::string& p2p, uint32_t p2p_trainers, bool on_demand, uint32_t threads, uint32_t profile_every) {
            new (self) Scheduler({.workers = workers,
                                  .capacity_rows = capacity_rows,
                                  .policy = policy,
                                  .seed = seed,
                                  .p2p = parse<P2P>("way from worker to worker", p2p, kP2P),
                                  .p2p_trainers = p2p_trainers,
                                  .on_demand = on_demand,
                                  .threads = threads,
                                  .profile_every = profile_every});
          },
          nb::kw_only(), "workers"_a, "capacity_rows"_a, "policy"_a = "laia", "seed"_a = 0, "p2p"_a = "off",
          "p2p_trainers"_a = 4, "on_demand"_a = true, "threads"_a = 1, "profile_every"_a = 8)
      .def("schedule", schedule, "features"_a.noconvert(), "samples"_a, nb::kw_only(),
           "scored"_a = std::vector<TableId>{}, "best_tables"_a = UINT32_MAX, "effort"_a = 0)
      .def("consider", consider, "features"_a.noconvert(), "samples"_a, "policy"_a, nb::kw_only(),
           "scored"_a = std::vector<TableId>{}, "effort"_a = 0)
      .def("flushed", &Scheduler::flushed, "step"_a)
      .def("clear", &Scheduler::clear)
      .def("cached", cached, "worker"_a)
      .def(
          "rows", [](const Scheduler& s, uint32_t worker) { return s.directory().rows_of(worker); }, "worker"_a)
      .def("infrequency", &Scheduler::infrequency, "table"_a)
      .def_prop_ro("step", &Scheduler::step);
}
