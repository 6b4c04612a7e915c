// The bare probe loop that `springtide bench store` measures the store against.
#include "bench/probe_loop.h"

#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Array>
void check_shape(const ProbeLoop& probe, size_t places, const Array& rows) {
  if (rows.shape(0) == places && rows.shape(1) == probe.dim()) return;
  throw BadInput("probe loop: rows must have shape (" + std::to_string(places) + ", " + std::to_string(probe.dim()) +
                 "), got (" + std::to_string(rows.shape(0)) + ", " + std::to_string(rows.shape(1)) + ")");
}

}  // namespace

void bind_probe_loop(nb::module_& m) {
  nb::class_<ProbeLoop>(m, "ProbeLoop")
      .def(nb::init<const TableSpec&, uint64_t, uint64_t>(), "spec"_a, "rows"_a, "seed"_a = 0,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("rows", &ProbeLoop::rows)
      .def_prop_ro("dim", &ProbeLoop::dim);
  m.def(
      "probe_gather",
      [](const ProbeLoop& probe, KeyArray places, Matrix out) {
        check_shape(probe, places.size(), out);
        nb::gil_scoped_release release;
        probe.gather({places.data(), places.size()}, out.data());
      },
      "probe"_a, "places"_a.noconvert(), "out"_a.noconvert());
  m.def(
      "probe_scatter",
      [](ProbeLoop& probe, KeyArray places, ConstMatrix grads, const Hyper& hyper) {
        check_shape(probe, places.size(), grads);
        nb::gil_scoped_release release;
        probe.scatter({places.data(), places.size()}, grads.data(), hyper);
      },
      "probe"_a, "places"_a.noconvert(), "grads"_a.noconvert(), "hyper"_a);
}
