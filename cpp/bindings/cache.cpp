// Worker caches. schedule.cpp makes the plans, and pulls and pushes go through step.cpp and client.cpp.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "cache/cached_backend.h"
#include "cache/versioned_backend.h"

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
