// Binds the rows of a step. Tensors are passed as addresses, so that one call moves the ids, outputs or gradients of
// all features. springtide/embedding/lookup/lookup.py has already checked dtype, layout and lifetime.
#include "bindings/step.h"

#include <nanobind/stl/shared_ptr.h>

#include <optional>

using namespace springtide;

namespace {

using Address = uint64_t;
using IdsTuple = std::tuple<Address, int64_t, int64_t>;  // ids, count, stride
// feature, pooling, bags, ids per bag, offsets, closed, weights
using BagTuple = std::tuple<size_t, uint8_t, int64_t, int64_t, Address, bool, Address>;
using RowsTuple = std::tuple<Address, int64_t>;  // output or its gradient, stride in floats

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

Bag bag_of(const BagTuple& tuple) {
  const auto& [feature, pooling, bags, per_bag, offsets, closed, weights] = tuple;
  if (pooling > static_cast<uint8_t>(Pooling::max))
    throw BadInput("pooling ", pooling, "; wanted 0 (none), 1 (sum), 2 (mean) or 3 (max)");
  return {static_cast<Pooling>(pooling), bags, per_bag, at<const int64_t>(offsets), closed, at<const float>(weights)};
}

// Its destructor may wait for pulls that nobody waited for, so it runs without the GIL.
std::shared_ptr<RowSource> make_source(std::shared_ptr<Backend> backend, uint32_t threads) {
  const auto end = [](RowSource* source) {
    std::optional<nb::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    delete source;
  };
  return {new RowSource(std::move(backend), threads), end};
}

void make_step(StepRows* self, RowSource& source, std::shared_ptr<StepPlan> plan, const std::vector<IdsTuple>& ids) {
  std::vector<FeatureIds> features;
  features.reserve(ids.size());
  for (const auto& [address, count, stride] : ids) features.push_back({at<const int64_t>(address), count, stride});
  new (self) StepRows(source, std::move(plan), features);
}

void make_columns(StepRows* self, RowSource& source, std::shared_ptr<StepPlan> plan, Address address, int64_t batch,
                  int64_t row_stride, int64_t column_stride) {
  std::vector<FeatureIds> features;
  for (size_t f = 0; f < plan->features.size(); ++f)
    features.push_back({at<const int64_t>(address) + static_cast<int64_t>(f) * column_stride, batch, row_stride});
  new (self) StepRows(source, std::move(plan), features);
}

void make_merged(StepRows* self, RowSource& source, std::shared_ptr<StepPlan> plan, const std::vector<StepRows*>& parts,
                 const std::vector<std::vector<int>>& groups) {
  if (parts.size() != groups.size()) throw BadInput("as many group lists as parts are needed");
  new (self) StepRows(source, std::move(plan), parts, groups);
}

void pool_bags(StepRows& step, const std::vector<BagTuple>& bags, const std::vector<RowsTuple>& outs) {
  if (bags.size() != outs.size()) throw BadInput("as many outputs as bags are needed");
  std::vector<PoolItem> items;
  items.reserve(bags.size());
  for (size_t i = 0; i < bags.size(); ++i)
    items.push_back({std::get<0>(bags[i]), bag_of(bags[i]), at<float>(std::get<0>(outs[i])), std::get<1>(outs[i])});
  step.pool(items);
}

void accumulate_bags(StepRows& step, const std::vector<BagTuple>& bags, const std::vector<RowsTuple>& grads,
                     const std::vector<Address>& grad_weights) {
  if (bags.size() != grads.size() || bags.size() != grad_weights.size())
    throw BadInput("as many gradients as bags are needed");
  std::vector<GradItem> items;
  items.reserve(bags.size());
  for (size_t i = 0; i < bags.size(); ++i)
    if (std::get<0>(grads[i]))
      items.push_back({std::get<0>(bags[i]), bag_of(bags[i]), at<const float>(std::get<0>(grads[i])),
                       std::get<1>(grads[i]), at<float>(grad_weights[i])});
  step.accumulate(items);
}

void pool_columns(StepRows& step, int64_t bags, Address out, int64_t stride) {
  step.pool_columns(bags, at<float>(out), stride);
}

void accumulate_columns(StepRows& step, int64_t bags, Address grad, int64_t stride) {
  step.accumulate_columns(bags, at<const float>(grad), stride);
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> view(const std::shared_ptr<RowSet>& set, std::span<float> floats) {
  nb::capsule owner(new std::shared_ptr<RowSet>(set),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<RowSet>*>(p); });
  return nb::ndarray<nb::numpy, float, nb::ndim<1>>(floats.data(), {floats.size()}, owner);
}

template <typename Rows>
nb::ndarray<nb::numpy, float, nb::ndim<1>> rows_of(Rows& self) {
  released([&] { self.set()->wait(); });
  return view(self.set(), self.set()->rows());
}

template <typename Rows>
nb::ndarray<nb::numpy, float, nb::ndim<1>> grads_of(Rows& self) {
  return view(self.set(), self.set()->grads());
}

// Memory for rows that later steps reuse. Python registers the memory with the GPU's driver, and keeps it until no step
// needs it.
struct HeldMemory {
  std::shared_ptr<float> memory;
  size_t floats = 0;
  bool unused() const { return memory.use_count() == 1; }
};

template <typename Rows>
std::vector<HeldMemory> memory_of(Rows& self) {
  std::vector<HeldMemory> held;
  for (const FloatBuffer* buffer : self.set()->buffers())
    if (buffer->size() != 0) held.push_back({buffer->memory(), buffer->size()});
  return held;
}

// Returns copies of what a push would send, row by row: tables, keys, number of floats of each row, gradients.
nb::tuple pushed(StepRows& self) {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<uint32_t> dims;
  std::vector<float> grads;
  {
    nb::gil_scoped_release release;
    const Part part = self.push_part();
    const Routed& routed = *part.routed;
    tables = routed.tables;
    keys = routed.keys;
    dims.reserve(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) dims.push_back(routed.row_offset[i + 1] - routed.row_offset[i]);
    grads.assign(part.rows, part.rows + (keys.empty() ? 0 : routed.row_offset[keys.size()]));
  }
  return nb::make_tuple(to_numpy(std::move(tables)), to_numpy(std::move(keys)), to_numpy(std::move(dims)),
                        to_numpy(std::move(grads)));
}

void pull(const std::vector<PyPart>& parts, uint64_t after_step) {
  std::vector<std::shared_ptr<RowSet>> sets;
  for (const PyPart& part : parts) sets.push_back(part.set());
  RowSet::pull(sets, {after_step});
}

std::vector<uint32_t> group_begin(const StepRows& step) {
  const auto begin = step.set()->group_begin();
  return {begin.begin(), begin.end()};
}

void make_feature(FeatureSpec* self, std::string name, uint16_t table, uint32_t dim, uint16_t group, uint64_t rows,
                  bool has_padding, int64_t padding, bool pull_padding) {
  new (self) FeatureSpec{std::move(name), table, dim, group, rows, has_padding, padding, pull_padding};
}

}  // namespace

PyPending::~PyPending() {
  if (!pending) return;
  nb::gil_scoped_release release;
  try {
    pending->wait();
  } catch (const std::exception&) {
    pending.reset();  // the push was dropped without wait(), so errors are ignored
  }
}

void PyPending::wait() {
  if (pending) pending->wait();
}

void bind_step(nb::module_& m) {
  nb::class_<RowSource>(m, "RowSource").def(nb::new_(&make_source), "backend"_a, "threads"_a = 1);
  nb::class_<HeldMemory>(m, "HeldMemory")
      .def_prop_ro("address", [](const HeldMemory& self) { return reinterpret_cast<uintptr_t>(self.memory.get()); })
      .def_prop_ro("nbytes", [](const HeldMemory& self) { return self.floats * sizeof(float); })
      .def_prop_ro("unused", &HeldMemory::unused);
  nb::class_<FeatureSpec>(m, "FeatureSpec")
      .def("__init__", &make_feature, "name"_a, "table"_a, "dim"_a, "group"_a, "rows"_a, "has_padding"_a, "padding"_a,
           "pull_padding"_a);
  nb::class_<StepPlan>(m, "StepPlan")
      .def(nb::init<std::vector<FeatureSpec>, bool>(), "features"_a, "wire_order"_a = false);
  nb::class_<StepRows>(m, "StepRows")
      .def("__init__", &make_step, "source"_a, "plan"_a, "ids"_a, NoGil())
      .def("__init__", &make_columns, "source"_a, "plan"_a, "address"_a, "batch"_a, "row_stride"_a, "column_stride"_a,
           NoGil())
      .def("__init__", &make_merged, "source"_a, "plan"_a, "parts"_a, "groups"_a, NoGil())
      .def(
          "wait", [](StepRows& self) { self.set()->wait(); }, NoGil())
      .def("pool", &pool_bags, "bags"_a, "outs"_a, NoGil())
      .def("accumulate", &accumulate_bags, "bags"_a, "grads"_a, "grad_weights"_a, NoGil())
      .def("pool_columns", &pool_columns, "bags"_a, "out"_a, "stride"_a, NoGil())
      .def("accumulate_columns", &accumulate_columns, "bags"_a, "grad"_a, "stride"_a, NoGil())
      .def("rows", &rows_of<StepRows>)
      .def("grads", &grads_of<StepRows>)
      .def("finite", &StepRows::finite)
      .def(
          "write_keys", [](StepRows& self, Address keys) { self.write_keys(at<int32_t>(keys)); }, "keys"_a, NoGil())
      .def("written_grads", [](StepRows& self) { return view(self.set(), self.set()->written_grads()); })
      .def(
          "rows_of_group", [](StepRows& self, size_t group) { return to_numpy(self.set()->rows_of_group(group)); },
          "group"_a)
      .def("memory", &memory_of<StepRows>)
      .def(
          "touch", [](StepRows& self, size_t group) { self.set()->touch(group); }, "group"_a)
      .def("suspect", [](StepRows& self) { self.set()->suspect(); })
      .def_prop_ro("ids", &StepRows::ids)
      .def("pushed", &pushed)
      .def(
          "untouch", [](StepRows& self, size_t group) { self.set()->untouch(group); }, "group"_a)
      .def(
          "touched", [](StepRows& self, size_t group) { return self.set()->touched(group); }, "group"_a)
      .def_prop_ro("unique", &StepRows::unique)
      .def_prop_ro("group_begin", &group_begin);
  nb::class_<DenseRows>(m, "DenseRows")
      .def(nb::init<RowSource&, TableArray, KeyArray, std::span<const uint32_t>>(), "source"_a, "tables"_a, "keys"_a,
           "dims"_a, NoGil())
      .def(
          "wait", [](DenseRows& self) { self.set()->wait(); }, NoGil())
      .def("rows", &rows_of<DenseRows>)
      .def("hold_basis", [](DenseRows& self) { self.set()->hold_basis(); })
      .def(
          "base_on", [](DenseRows& self, const DenseRows& values) { self.set()->base_on(*values.set()); }, "values"_a)
      .def("grads", &grads_of<DenseRows>)
      .def("memory", &memory_of<DenseRows>);
  m.def("pull", &pull, "parts"_a, "after_step"_a, NoGil());
}
