// Measures an upper bound for any hashed table, for `springtide bench store`. Reads (and updates) rows through random
// index cells, with the same bytes, prefetches, huge pages and kernels as the store. The loop does no hashing,
// comparing, locking or growing.
#include <span>
#include <vector>

#include "base/cpu.h"
#include "base/half.h"
#include "base/hash.h"
#include "bindings/bindings.h"
#include "store/index/arena.h"
#include "store/keys/table.h"

using namespace springtide;

namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr size_t kAhead = 16;  // as in the store
constexpr size_t kRing = 2 * kAhead;

class ProbeLoop {
 public:
  // Rows of this spec in one arena, with a row's weights and state side by side, and cells in a random order.
  ProbeLoop(const TableSpec& spec, uint64_t rows, uint64_t seed)
      : spec_(spec),
        rows_(rows),
        optimizer_(spec.optim, spec.dim, spec.name),
        weight_bytes_(spec.dim * bytes_of(spec.dtype)),
        vectors_at_((weight_bytes_ + 3) / 4 * 4),
        number_at_(vectors_at_ + optimizer_.vector_floats() * 4),
        row_bytes_(number_at_ + (optimizer_.has_number() ? 4 : 0)),
        cells_arena_("probe cells", rows * sizeof(ProbeCell)),
        rows_arena_("probe rows", rows * row_bytes_ + kLine),
        cells_(reinterpret_cast<ProbeCell*>(cells_arena_.base())),
        base_(rows_arena_.base()) {
    throw_if<BadInput>(
        rows == 0 || cells_arena_.capacity() < rows * sizeof(ProbeCell) || rows_arena_.capacity() < rows * row_bytes_,
        "probe loop: cannot have ", rows, " rows here");
    for (uint64_t i = 0; i < rows; ++i) cells_[i] = {i, i};
    for (uint64_t i = rows - 1; i > 0; --i) std::swap(cells_[i].row, cells_[mix64(seed + i) % (i + 1)].row);
    RowInit init({InitKind::uniform, -0.1f, 0.1f}, spec.dim, seed);
    std::vector<float> weights(spec.dim);
    for (uint64_t i = 0; i < rows; ++i) {
      init.fill(i, weights.data(), spec.dim);
      uint8_t* row = base_ + i * row_bytes_;
      narrow(spec.dtype, weights.data(), row, spec.dim);
      optimizer_.reset(reinterpret_cast<float*>(row + vectors_at_), reinterpret_cast<float*>(row + number_at_));
    }
  }

  void gather(std::span<const int64_t> places, float* out) const {
    walk<0>(places, weight_bytes_, [&, out](const uint8_t* row) mutable {
      read_row(spec_.dtype, row, out, spec_.dim);
      out += spec_.dim;
    });
  }
  void scatter(std::span<const int64_t> places, const float* grads, const TableHyper& hyper) {
    const StepArgs args = optimizer_.prepare(hyper);
    const Kernel kernel = optimizer_.kernel();
    walk<1>(places, row_bytes_, [&, grads](uint8_t* row) mutable {
      update_row(spec_.dtype, kernel, args, row, reinterpret_cast<float*>(row + vectors_at_),
                 reinterpret_cast<float*>(row + number_at_), grads, spec_.dim);
      grads += spec_.dim;
    });
  }

  uint64_t rows() const { return rows_; }
  uint32_t dim() const { return spec_.dim; }

 private:
  struct ProbeCell {
    uint64_t key, row;
  };

  template <int kToWrite, class Use>
  void walk(std::span<const int64_t> places, size_t bytes, Use use) const {
    for (const int64_t place : places) {
      if (static_cast<uint64_t>(place) < rows_) continue;
      throw BadInput("probe loop: place ", place, " is not one of ", rows_);
    }
    uint8_t* ring[kRing];
    const size_t n = places.size();
    for (size_t i = 0; i < n + 2 * kAhead; ++i) {
      if (i < n) prefetch_read(cells_ + places[i]);
      if (size_t j = i - kAhead; j < n) {
        ring[j % kRing] = base_ + cells_[places[j]].row * row_bytes_;
        prefetch_lines<0, kToWrite>(ring[j % kRing], bytes);
      }
      if (size_t k = i - 2 * kAhead; k < n) use(ring[k % kRing]);
    }
  }

  TableSpec spec_;
  uint64_t rows_;
  Optimizer optimizer_;
  uint32_t weight_bytes_, vectors_at_, number_at_, row_bytes_;
  Arena cells_arena_, rows_arena_;
  ProbeCell* cells_;
  uint8_t* base_;
};

template <class Rows>
void check_shape(const ProbeLoop& probe, size_t places, const Rows& rows) {
  if (rows.shape(0) == places && rows.shape(1) == probe.dim()) return;
  throw BadInput("probe loop: rows must have shape (", places, ", ", probe.dim(), "), got (", rows.shape(0), ", ",
                 rows.shape(1), ")");
}

}  // namespace

void bind_probe_loop(nb::module_& m) {
  nb::class_<ProbeLoop>(m, "ProbeLoop")
      .def(nb::init<const TableSpec&, uint64_t, uint64_t>(), "spec"_a, "rows"_a, "seed"_a = 0, NoGil())
      .def_prop_ro("rows", &ProbeLoop::rows)
      .def_prop_ro("dim", &ProbeLoop::dim);
  m.def(
      "probe_gather",
      [](const ProbeLoop& probe, KeyArray places, Matrix out) {
        check_shape(probe, places.size(), out);
        nb::gil_scoped_release release;
        probe.gather(places, out.data());
      },
      "probe"_a, "places"_a, "out"_a.noconvert());
  m.def(
      "probe_scatter",
      [](ProbeLoop& probe, KeyArray places, ConstMatrix grads, const TableHyper& hyper) {
        check_shape(probe, places.size(), grads);
        nb::gil_scoped_release release;
        probe.scatter(places, grads.data(), hyper);
      },
      "probe"_a, "places"_a, "grads"_a.noconvert(), "hyper"_a);
}
