// Distinct integers. Python allocates the outputs, so that they are tensors.
#include "batch/distinct.h"

#include "base/types.h"
#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

using OutArray = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_distinct(nb::module_& m) {
  m.def(
      "distinct",
      [](KeyArray given, OutArray values, OutArray inverse, OutArray counts) {
        const size_t all = given.size();
        const auto fits = [all](const OutArray& one) { return one.size() == 0 || one.size() == all; };
        if (values.size() != all || !fits(inverse) || !fits(counts) || all >> 32 != 0) {
          throw BadInput("room for distinct integers: wanted as much as are given, or none; fewer than 2^32");
        }
        const DistinctOut out{values.data(), inverse.size() > 0 ? inverse.data() : nullptr,
                              counts.size() > 0 ? counts.data() : nullptr};
        nb::gil_scoped_release release;
        return distinct({given.data(), all}, out);
      },
      "given"_a.noconvert(), "values"_a.noconvert(), "inverse"_a.noconvert(), "counts"_a.noconvert(),
      "How many distinct integers are given. They come rising at the begin of `values`, how often each was "
      "given in\n"
      "`counts`, and in `inverse` the place among them of each given; an empty array: not wanted.");
}
