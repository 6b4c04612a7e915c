// TableSpec and Hyper, with enums by name; an unknown name raises springtide.errors.UnknownName.

#include "bindings/bindings.h"

using namespace springtide;

namespace {

constexpr std::array<const char*, 3> kDTypes{"float32", "float16", "bfloat16"};
constexpr std::array<const char*, 4> kInits{"zeros", "uniform", "normal", "xavier"};
constexpr std::array<const char*, 6> kOptimizers{"sgd", "adagrad", "rowwise_adagrad", "adam", "rmsprop", "ftrl"};

// "zeros", or ("uniform", low, high), ("normal", mean, std), ("xavier", gain, rows).
InitSpec parse_init(const nb::object& init) {
  InitSpec spec;
  if (nb::isinstance<nb::str>(init)) {
    spec.kind = parse<InitKind>("init", nb::cast<std::string>(init), kInits);
    if (spec.kind == InitKind::zeros) return spec;
    throw BadInput("init '", nb::cast<std::string>(init), "' needs two numbers: give (name, a, b)");
  }
  if (!nb::isinstance<nb::sequence>(init) || nb::len(init) != 3) {
    throw BadInput("init must be 'zeros' or (name, a, b), got ", nb::cast<std::string>(nb::repr(init)));
  }
  spec.kind = parse<InitKind>("init", nb::cast<std::string>(init[0]), kInits);
  spec.a = nb::cast<float>(init[1]);
  spec.b = nb::cast<float>(init[2]);
  return spec;
}

nb::tuple init_tuple(const TableSpec& t) {
  return nb::make_tuple(kInits[static_cast<size_t>(t.init.kind)], t.init.a, t.init.b);
}

// clang-format off
#define SPRINGTIDE_OPTIMIZER_NUMBERS(F) \
  F(momentum) F(dampening) F(nesterov) F(beta1) F(beta2) F(eps_outside) F(decoupled_decay) F(eps) F(alpha) F(ftrl_beta) \
  F(l1) F(l2) F(initial_accumulator)
// clang-format on
#define SPRINGTIDE_SET(name) spec.optim.name = name;
#define SPRINGTIDE_READ(name) .def_prop_ro(#name, [](const TableSpec& t) { return t.optim.name; })

void bind_hyper(nb::module_& m) {
  nb::class_<TableHyper>(m, "Hyper")
      .def(
          "__init__",
          [](TableHyper* self, float lr, float weight_decay, uint64_t step) {
            new (self) TableHyper{.lr = lr, .weight_decay = weight_decay, .step = step};
          },
          "lr"_a, "weight_decay"_a = 0.0f, "step"_a = 0)
      .def_rw("lr", &TableHyper::lr)
      .def_rw("weight_decay", &TableHyper::weight_decay)
      .def_rw("step", &TableHyper::step);
}

}  // namespace

void bind_table_spec(nb::module_& m) {
  bind_hyper(m);
  nb::class_<TableSpec>(m, "TableSpec")
      .def(
          "__init__",
          [](TableSpec* self, TableId id, std::string name, uint32_t dim, const std::string& dtype,
             const nb::object& init, const std::string& optimizer, float momentum, float dampening, bool nesterov,
             float beta1, float beta2, bool eps_outside, bool decoupled_decay, float eps, float alpha, float ftrl_beta,
             float l1, float l2, float initial_accumulator, uint32_t min_count, uint64_t ttl, uint64_t capacity_rows) {
            TableSpec spec{
                id,  std::move(name), dim, parse<DType>("dtype", dtype, kDTypes), parse_init(init), {}, min_count,
                ttl, capacity_rows};
            spec.optim.kind = parse<OptimKind>("optimizer", optimizer, kOptimizers);
            SPRINGTIDE_OPTIMIZER_NUMBERS(SPRINGTIDE_SET)
            new (self) TableSpec(std::move(spec));
          },
          nb::kw_only(), "id"_a, "name"_a, "dim"_a, "dtype"_a = "float32", "init"_a = "zeros", "optimizer"_a = "sgd",
          "momentum"_a = 0.0f, "dampening"_a = 0.0f, "nesterov"_a = false, "beta1"_a = 0.9f, "beta2"_a = 0.999f,
          "eps_outside"_a = true, "decoupled_decay"_a = false, "eps"_a = 1e-8f, "alpha"_a = 0.99f, "ftrl_beta"_a = 1.0f,
          "l1"_a = 0.0f, "l2"_a = 0.0f, "initial_accumulator"_a = 0.0f, "min_count"_a = 0, "ttl"_a = 0,
          "capacity_rows"_a = 0)
      .def_ro("id", &TableSpec::id)
      .def_ro("name", &TableSpec::name)
      .def_ro("dim", &TableSpec::dim)
      .def_prop_ro("dtype", [](const TableSpec& t) { return kDTypes[static_cast<size_t>(t.dtype)]; })
      .def_prop_ro("init", init_tuple)
      .def_prop_ro("optimizer", [](const TableSpec& t) { return kOptimizers[static_cast<size_t>(t.optim.kind)]; })
          SPRINGTIDE_OPTIMIZER_NUMBERS(SPRINGTIDE_READ)
      .def_ro("min_count", &TableSpec::min_count)
      .def_ro("ttl", &TableSpec::ttl)
      .def_ro("capacity_rows", &TableSpec::capacity_rows)
      .def("__eq__", [](const TableSpec& a, const TableSpec& b) { return a == b; });
}
