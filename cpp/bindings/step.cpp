// Rows of a step for Python. Tensors come as addresses: one call moves the ids, outputs or gradients of all
// features, and springtide/embedding/lookup/lookup.py has checked dtype, layout and lifetime before.
#include "bindings/step.h"

#include <nanobind/stl/shared_ptr.h>

#include <optional>

namespace st = springtide;

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

st::Bag bag_of(const BagTuple& tuple) {
  const auto& [feature, pooling, bags, per_bag, offsets, closed, weights] = tuple;
  if (pooling > static_cast<uint8_t>(st::Pooling::max))
    throw st::BadInput("pooling " + std::to_string(pooling) + "; wanted 0 (none), 1 (sum), 2 (mean) or 3 (max)");
  return {static_cast<st::Pooling>(pooling), bags,   per_bag,
          at<const int64_t>(offsets),        closed, at<const float>(weights)};
}

// Its end may wait for pulls that nobody waited for, so it comes without the GIL.
std::shared_ptr<st::RowSource> make_source(std::shared_ptr<st::Backend> backend, uint32_t threads) {
  const auto end = [](st::RowSource* source) {
    std::optional<nb::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    delete source;
  };
  return {new st::RowSource(std::move(backend), threads), end};
}

void make_step(st::StepRows* self, st::RowSource& source, std::shared_ptr<st::StepPlan> plan,
               const std::vector<IdsTuple>& ids) {
  std::vector<st::FeatureIds> features;
  features.reserve(ids.size());
  for (const auto& [address, count, stride] : ids) features.push_back({at<const int64_t>(address), count, stride});
  nb::gil_scoped_release release;
  new (self) st::StepRows(source, std::move(plan), features);
}

void make_columns(st::StepRows* self, st::RowSource& source, std::shared_ptr<st::StepPlan> plan, Address address,
                  int64_t batch, int64_t row_stride, int64_t column_stride) {
  std::vector<st::FeatureIds> features;
  for (size_t f = 0; f < plan->features.size(); ++f)
    features.push_back({at<const int64_t>(address) + static_cast<int64_t>(f) * column_stride, batch, row_stride});
  nb::gil_scoped_release release;
  new (self) st::StepRows(source, std::move(plan), features);
}

void make_merged(st::StepRows* self, st::RowSource& source, std::shared_ptr<st::StepPlan> plan,
                 const std::vector<st::StepRows*>& parts, const std::vector<std::vector<int>>& groups) {
  if (parts.size() != groups.size()) throw st::BadInput("as many group lists as parts are needed");
  nb::gil_scoped_release release;
  new (self) st::StepRows(source, std::move(plan), parts, groups);
}

void pool(st::StepRows& step, const std::vector<BagTuple>& bags, const std::vector<RowsTuple>& outs) {
  if (bags.size() != outs.size()) throw st::BadInput("as many outputs as bags are needed");
  std::vector<st::PoolItem> items;
  items.reserve(bags.size());
  for (size_t i = 0; i < bags.size(); ++i)
    items.push_back({std::get<0>(bags[i]), bag_of(bags[i]), at<float>(std::get<0>(outs[i])), std::get<1>(outs[i])});
  nb::gil_scoped_release release;
  step.pool(items);
}

void accumulate(st::StepRows& step, const std::vector<BagTuple>& bags, const std::vector<RowsTuple>& grads,
                const std::vector<Address>& grad_weights) {
  if (bags.size() != grads.size() || bags.size() != grad_weights.size())
    throw st::BadInput("as many gradients as bags are needed");
  std::vector<st::GradItem> items;
  items.reserve(bags.size());
  for (size_t i = 0; i < bags.size(); ++i)
    if (std::get<0>(grads[i]))
      items.push_back({std::get<0>(bags[i]), bag_of(bags[i]), at<const float>(std::get<0>(grads[i])),
                       std::get<1>(grads[i]), at<float>(grad_weights[i])});
  nb::gil_scoped_release release;
  step.accumulate(items);
}

void pool_columns(st::StepRows& step, int64_t bags, Address out, int64_t stride) {
  nb::gil_scoped_release release;
  step.pool_columns(bags, at<float>(out), stride);
}

void accumulate_columns(st::StepRows& step, int64_t bags, Address grad, int64_t stride) {
  nb::gil_scoped_release release;
  step.accumulate_columns(bags, at<const float>(grad), stride);
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> view(const std::shared_ptr<st::RowSet>& set, std::span<float> floats) {
  nb::capsule owner(new std::shared_ptr<st::RowSet>(set),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<st::RowSet>*>(p); });
  return nb::ndarray<nb::numpy, float, nb::ndim<1>>(floats.data(), {floats.size()}, owner);
}

template <typename Rows>
nb::ndarray<nb::numpy, float, nb::ndim<1>> rows_of(Rows& self) {
  {
    nb::gil_scoped_release release;
    self.set()->wait();
  }
  return view(self.set(), self.set()->rows());
}

template <typename Rows>
nb::ndarray<nb::numpy, float, nb::ndim<1>> grads_of(Rows& self) {
  return view(self.set(), self.set()->grads());
}

// Copies of what a push would send, row by row: tables, keys, floats of each row, gradients.
nb::tuple pushed(st::StepRows& self) {
  std::vector<st::TableId> tables;
  std::vector<st::Key> keys;
  std::vector<uint32_t> dims;
  std::vector<float> grads;
  {
    nb::gil_scoped_release release;
    const st::Part part = self.push_part();
    const st::Routed& routed = *part.routed;
    tables = routed.tables;
    keys = routed.keys;
    dims.reserve(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) dims.push_back(routed.row_offset[i + 1] - routed.row_offset[i]);
    grads.assign(part.rows, part.rows + (keys.empty() ? 0 : routed.row_offset[keys.size()]));
  }
  return nb::make_tuple(to_numpy(std::move(tables)), to_numpy(std::move(keys)), to_numpy(std::move(dims)),
                        to_numpy(std::move(grads)));
}

template <typename Rows>
void wait(Rows& self) {
  nb::gil_scoped_release release;
  self.set()->wait();
}

void pull(const std::vector<PyPart>& parts, uint64_t after_step) {
  std::vector<std::shared_ptr<st::RowSet>> sets;
  for (const PyPart& part : parts) sets.push_back(part.set());
  nb::gil_scoped_release release;
  st::RowSet::pull(sets, {after_step});
}

std::vector<uint32_t> group_begin(const st::StepRows& step) {
  const auto begin = step.set()->group_begin();
  return {begin.begin(), begin.end()};
}

void make_feature(st::FeatureSpec* self, std::string name, uint16_t table, uint32_t dim, uint16_t group, uint64_t rows,
                  bool has_padding, int64_t padding, bool pull_padding) {
  new (self) st::FeatureSpec{std::move(name), table, dim, group, rows, has_padding, padding, pull_padding};
}

void make_dense(st::DenseRows* self, st::RowSource& source, TableArray tables, KeyArray keys,
                nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> dims) {
  nb::gil_scoped_release release;
  new (self)
      st::DenseRows(source, {tables.data(), tables.size()}, {keys.data(), keys.size()}, {dims.data(), dims.size()});
}

}  // namespace

PyPending::~PyPending() {
  if (!pending) return;
  nb::gil_scoped_release release;
  try {
    pending->wait();
  } catch (const std::exception&) {
    pending.reset();  // dropped without a wait(), so errors are ignored
  }
}

void PyPending::wait() {
  if (pending) pending->wait();
}

void bind_step(nb::module_& m) {
  nb::class_<st::RowSource>(m, "RowSource").def(nb::new_(&make_source), nb::arg("backend"), nb::arg("threads") = 1);
  nb::class_<st::FeatureSpec>(m, "FeatureSpec")
      .def("__init__", &make_feature, nb::arg("name"), nb::arg("table"), nb::arg("dim"), nb::arg("group"),
           nb::arg("rows"), nb::arg("has_padding"), nb::arg("padding"), nb::arg("pull_padding"));
  nb::class_<st::StepPlan>(m, "StepPlan").def(nb::init<std::vector<st::FeatureSpec>>(), nb::arg("features"));
  nb::class_<st::StepRows>(m, "StepRows")
      .def("__init__", &make_step, nb::arg("source"), nb::arg("plan"), nb::arg("ids"))
      .def("__init__", &make_columns, nb::arg("source"), nb::arg("plan"), nb::arg("address"), nb::arg("batch"),
           nb::arg("row_stride"), nb::arg("column_stride"))
      .def("__init__", &make_merged, nb::arg("source"), nb::arg("plan"), nb::arg("parts"), nb::arg("groups"))
      .def("wait", &wait<st::StepRows>)
      .def("pool", &pool, nb::arg("bags"), nb::arg("outs"))
      .def("accumulate", &accumulate, nb::arg("bags"), nb::arg("grads"), nb::arg("grad_weights"))
      .def("pool_columns", &pool_columns, nb::arg("bags"), nb::arg("out"), nb::arg("stride"))
      .def("accumulate_columns", &accumulate_columns, nb::arg("bags"), nb::arg("grad"), nb::arg("stride"))
      .def("rows", &rows_of<st::StepRows>)
      .def("grads", &grads_of<st::StepRows>)
      .def("finite", &st::StepRows::finite)
      .def("pushed", &pushed)
      .def(
          "untouch", [](st::StepRows& self, size_t group) { self.set()->untouch(group); }, nb::arg("group"))
      .def(
          "touched", [](st::StepRows& self, size_t group) { return self.set()->touched(group); }, nb::arg("group"))
      .def_prop_ro("unique", &st::StepRows::unique)
      .def_prop_ro("group_begin", &group_begin);
  nb::class_<st::DenseRows>(m, "DenseRows")
      .def("__init__", &make_dense, nb::arg("source"), nb::arg("tables").noconvert(), nb::arg("keys").noconvert(),
           nb::arg("dims").noconvert())
      .def("wait", &wait<st::DenseRows>)
      .def("rows", &rows_of<st::DenseRows>)
      .def("hold_basis", [](st::DenseRows& self) { self.set()->hold_basis(); })
      .def("grads", &grads_of<st::DenseRows>);
  m.def("pull", &pull, nb::arg("parts"), nb::arg("after_step"));
}
