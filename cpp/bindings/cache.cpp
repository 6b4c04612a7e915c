// Worker caches. Plans come from schedule.cpp; pulls and pushes go through step.cpp and client.cpp.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "cache/cached_backend.h"
#include "cache/versioned_backend.h"

namespace st = springtide;

namespace {

nb::dict stats_of(const st::CachedBackend& cache) {
  const auto stats = cache.stats();
  nb::dict out;
  SPRINGTIDE_CACHE_STATS(SPRINGTIDE_ENTRY)
  return out;
}

nb::list arrays_of(std::vector<st::CachedBackend::RankBuffer> parcels) {
  nb::list out;
  for (auto& parcel : parcels) out.append(nb::make_tuple(parcel.peer, to_numpy(std::move(parcel.floats))));
  return out;
}

nb::dict versioned_stats(const st::VersionedBackend& cache) {
  const auto stats = cache.stats();
  nb::dict out;
  SPRINGTIDE_VERSIONED_STATS(SPRINGTIDE_ENTRY)
  return out;
}

void bind_versioned(nb::module_& m) {
  nb::class_<st::VersionedBackend, st::CachingBackend>(m, "VersionedBackend")
      .def(
          "__init__",
          [](st::VersionedBackend* self, std::shared_ptr<st::Backend> inner, uint64_t capacity_bytes,
             const std::string& order, uint32_t staleness) {
            new (self) st::VersionedBackend(
                std::move(inner),
                {capacity_bytes, parse<st::EvictOrder>("order of eviction", order, kEvictOrders), staleness});
          },
          nb::arg("inner"), nb::kw_only(), nb::arg("capacity_bytes"), nb::arg("order") = "lru",
          nb::arg("staleness") = 0)
      .def("resize", &st::VersionedBackend::resize, nb::arg("capacity_bytes"))
      .def("clear", &st::VersionedBackend::clear)
      .def("stats", &versioned_stats);
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<st::CachingBackend, st::Backend>(m, "CachingBackend")
      .def_prop_ro("inner", &st::CachingBackend::inner)
      .def(
          "cache_tables",
          [](st::CachingBackend& cache, const std::vector<st::TableId>& tables) { cache.cache_tables(tables); },
          nb::arg("tables"))
      .def("image_bytes", &st::CachingBackend::image_bytes, nb::arg("table"));
  bind_versioned(m);
  nb::class_<st::CachedBackend, st::CachingBackend>(m, "CachedBackend")
      .def(nb::init<std::shared_ptr<st::Backend>>(), nb::arg("inner"))
      .def_static(
          "cacheable", [](const st::TableSpec& spec) { return st::CachedTables::refusal_of(spec).empty(); },
          nb::arg("spec"))
      .def(
          "set_plan",
          [](st::CachedBackend& cache, uint64_t step, const st::CachePlan& plan) { cache.set_plan(step, plan); },
          nb::arg("step"), nb::arg("plan"))
      .def("move_plan", &st::CachedBackend::move_plan, nb::arg("step"), nb::arg("to"))
      .def("flush_next", &st::CachedBackend::flush_next)
      .def("clear", &st::CachedBackend::clear)
      .def(
          "sends", [](st::CachedBackend& cache, uint64_t step) { return arrays_of(cache.sends(step)); },
          nb::arg("step"))
      .def("receives", &st::CachedBackend::receives, nb::arg("step"))
      .def(
          "received",
          [](st::CachedBackend& cache, uint64_t step, uint32_t peer, ConstFloatArray floats) {
            cache.received(step, peer, {floats.data(), floats.size()});
          },
          nb::arg("step"), nb::arg("peer"), nb::arg("floats").noconvert())
      .def(
          "gradient_sends",
          [](const st::CachedBackend& cache, uint64_t step, const std::vector<PyPart>& parts) {
            std::vector<st::Part> native;
            for (const PyPart& part : parts) native.push_back(part.push_part());
            return arrays_of(cache.gradient_sends(step, native));
          },
          nb::arg("step"), nb::arg("parts"))
      .def("gradient_receives", &st::CachedBackend::gradient_receives, nb::arg("step"))
      .def(
          "gradients_received",
          [](st::CachedBackend& cache, uint64_t step, uint32_t peer, ConstFloatArray floats) {
            cache.gradients_received(step, peer, {floats.data(), floats.size()});
          },
          nb::arg("step"), nb::arg("peer"), nb::arg("floats").noconvert())
      .def("stats", &stats_of);
}
