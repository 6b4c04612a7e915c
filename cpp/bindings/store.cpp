// Binds Store, TableSpec and Hyper. Arrays are used without conversion, or refused. The GIL is released while tables
// are used.
#include "store/store.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/hash.h"
#include "bindings/bindings.h"
#include "slots/slot_copy.h"
#include "slots/slot_image.h"

using namespace springtide;

namespace {

using HyperList = std::vector<std::pair<TableId, TableHyper>>;

void check_flat(const char* call, const Store& store, std::span<const TableId> tables, size_t keys, size_t floats) {
  throw_if<BadInput>(tables.size() != keys, call, ": one table a key is needed, got ", tables.size(), " tables and ",
                     keys, " keys");
  uint64_t wanted = store.row_floats(tables);
  throw_if<BadInput>(wanted != floats, call, ": the rows of these keys have ", wanted,
                     " floats together, got an array of ", floats);
}

std::vector<TableHyper> named(const HyperList& hyper) {
  std::vector<TableHyper> all;
  for (const auto& [id, values] : hyper) {
    all.push_back(values);
    all.back().table = id;
  }
  return all;
}

nb::tuple scan(Store& store, TableId table, uint32_t slot) {
  std::vector<Key> keys;
  std::vector<float> rows;
  released([&] { return store.scan(table, slot, keys, rows); });
  return nb::make_tuple(to_numpy(std::move(keys)), to_numpy(std::move(rows), store.spec(table).dim));
}

nb::bytes export_slot(Store& store, uint32_t slot, uint64_t since_cut) {
  const auto image = released([&] { return store.export_slot(slot, since_cut); });
  return nb::bytes(image.data(), image.size());
}

// Writes all bytes. Returns 0, or an errno.
int write_at(int file, uint64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : ENOSPC;
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
  return 0;
}

// Raises OSError unless `failed` is 0.
void check_written(int failed) {
  if (failed == 0) return;
  errno = failed;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

// Writes `count` more of the bytes before the identities to a file at `offset`. Writes the header last. Returns True if
// all bytes are written.
bool write_on(SlotCopy& copy, int file, uint64_t offset, size_t count) {
  if (copy.size() == 0) throw BadInput("there is nothing to write: copy a slot first");
  int failed = 0;
  {
    nb::gil_scoped_release release;
    const uint64_t end = copy.given() + std::min<uint64_t>(count, copy.size() - copy.given());
    while (failed == 0 && copy.given() < end) {
      const uint64_t at = offset + copy.given();
      failed = write_at(file, at, copy.next(end - copy.given()));
    }
    if (failed == 0 && copy.given() == copy.size()) failed = write_at(file, offset, copy.signature());
  }
  check_written(failed);
  return copy.given() == copy.size();
}

void write_identities(const SlotCopy& copy, int file, uint64_t offset) {
  check_written(released([&] { return write_at(file, offset, copy.identities()); }));
}

OnceStats push_once(Store& store, TableArray tables, KeyArray keys, FloatArray grads, const HyperList& hyper,
                    const std::vector<BatchTuple>& ranges, std::optional<ByteArray> covers, uint64_t clock,
                    bool unique) {
  check_flat("push_once", store, tables, keys.size(), grads.size());
  const std::vector<TableHyper> values = named(hyper);
  const std::vector<BatchRange> batches = batches_of(ranges);
  const RowRun run{keys.size(), const_cast<float*>(grads.data())};
  nb::gil_scoped_release release;
  return store.push_once({tables, keys, {&run, 1}}, values, clock, unique, {batches, covers.value_or(ByteArray())});
}

// Ranges of samples: the first shard and its first sample, the last shard and the end in it (None: the end of the
// shard).
nb::list applied(const Store& store, uint32_t slot) {
  nb::list runs;
  const IdentitySet set = store.applied(slot);
  for (const SampleRun& run : set.runs()) {
    const nb::object end = run.end == kShardEnd ? nb::none() : nb::object(nb::int_(run.end));
    runs.append(nb::make_tuple(run.first_shard, run.first, run.last_shard, end));
  }
  return runs;
}

nb::object slots_of(const Store& store, TableId table, KeyArray keys) {
  std::vector<uint32_t> slots(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    slots[i] = slot_of(hash_key(table, keys[i]), store.slots());
  }
  return to_numpy(std::move(slots));
}

void bind_numbers(nb::module_& m) {
  nb::class_<SlotLoad>(m, "SlotLoad")
      .def_ro("rows", &SlotLoad::rows)
      .def_ro("bytes", &SlotLoad::bytes)
      .def_ro("requests", &SlotLoad::requests);
  nb::class_<PushStats>(m, "PushStats")
      .def_ro("applied", &PushStats::applied)
      .def_ro("created", &PushStats::created)
      .def_ro("waiting", &PushStats::waiting)
      .def_ro("evicted", &PushStats::evicted);
}

void bind_identities(nb::module_& m, nb::class_<Store>& store) {
  m.attr("FIRST_VALUES") = kFirstValues;
  nb::class_<OnceStats, PushStats>(m, "OnceStats")
      .def_ro("had_keys", &OnceStats::had_keys)
      .def_ro("foreign_keys", &OnceStats::foreign_keys)
      .def_ro("foreign", &OnceStats::foreign)
      .def_ro("torn", &OnceStats::torn);
  nb::class_<IdentityStats>(m, "IdentityStats")
      .def_ro("sets", &IdentityStats::sets)
      .def_ro("runs", &IdentityStats::runs)
      .def_ro("bytes", &IdentityStats::bytes);
  store
      .def("push_once", push_once, "tables"_a, "keys"_a, "grads"_a, "hyper"_a, "batches"_a,
           "speaks_for"_a.none() = nb::none(), "clock"_a = 0, "unique"_a = false)
      .def("applied", applied, "slot"_a)
      .def("identity_stats", &Store::identity_stats);
}

void bind_rows(nb::class_<Store>& store) {
  store
      .def(
          "pull",
          [](Store& s, TableArray tables, KeyArray keys, std::span<float> out) {
            check_flat("pull", s, tables, keys.size(), out.size());
            nb::gil_scoped_release release;
            s.pull(tables, keys, out.data());
          },
          "tables"_a, "keys"_a, "out"_a)
      .def(
          "row_floats", [](const Store& s, TableArray tables) { return s.row_floats(tables); }, "tables"_a)
      .def(
          "push",
          [](Store& s, TableArray tables, KeyArray keys, FloatArray grads, const HyperList& hyper, uint64_t clock,
             bool unique) {
            check_flat("push", s, tables, keys.size(), grads.size());
            const std::vector<TableHyper> values = named(hyper);
            nb::gil_scoped_release release;
            return s.push(tables, keys, grads.data(), values, clock, unique);
          },
          "tables"_a, "keys"_a, "grads"_a, "hyper"_a, "clock"_a = 0, "unique"_a = false)
      .def(
          "assign",
          [](Store& s, TableArray tables, KeyArray keys, FloatArray rows, bool keep) {
            check_flat("assign", s, tables, keys.size(), rows.size());
            nb::gil_scoped_release release;
            s.assign(tables, keys, rows.data(), nullptr, keep);
          },
          "tables"_a, "keys"_a, "rows"_a, "keep"_a = false);
}

void bind_images(nb::module_& m) {
  nb::class_<SlotCopy>(m, "SlotCopy")
      .def(nb::init<>())
      .def_prop_ro("size", &SlotCopy::size)
      .def_prop_ro("checksum", &SlotCopy::checksum)
      .def_prop_ro("full", &SlotCopy::full)
      .def("write_on", write_on, "file"_a, "offset"_a, "count"_a = SIZE_MAX)
      // Number of bytes and checksum of the identities; both are equal for copies that can share the identities.
      .def_prop_ro(
          "identities",
          [](const SlotCopy& copy) { return nb::make_tuple(copy.identities().size(), checksum(copy.identities())); })
      .def("write_identities", write_identities, "file"_a, "offset"_a);
  m.def("is_whole_image", &is_whole, "bytes"_a, NoGil());
  m.def(
      "image_facts",
      [](ByteArray bytes) {
        ImageInfo facts = image_info(bytes);
        return nb::make_tuple(facts.slot, facts.full, facts.checksum);
      },
      "bytes"_a);
}

// TableSpec and Hyper, with the names of enum values. An unknown name raises springtide.errors.UnknownName.
constexpr std::array<const char*, 3> kDTypes{"float32", "float16", "bfloat16"};
constexpr std::array<const char*, 4> kInits{"zeros", "uniform", "normal", "xavier"};
constexpr std::array<const char*, 6> kOptimizers{"sgd", "adagrad", "rowwise_adagrad", "adam", "rmsprop", "ftrl"};

// Takes "zeros", ("uniform", low, high), ("normal", mean, std) or ("xavier", gain, rows).
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

}  // namespace

void bind_store(nb::module_& m) {
  bind_images(m);
  bind_table_spec(m);
  bind_numbers(m);
  nb::class_<Store> store(m, "Store");
  store.def(
      "__init__",
      [](Store* self, uint32_t slots, uint64_t seed, uint32_t threads, uint64_t reserve_bytes) {
        new (self) Store(StoreOptions{slots, seed, reserve_bytes, threads});
      },
      "slots"_a = 1024, "seed"_a = 0, "threads"_a = 1, "reserve_bytes"_a = 0);
  bind_rows(store);
  bind_identities(m, store);
  store.def("declare", &Store::declare, "spec"_a)
      .def("table", &Store::spec, "table"_a, nb::rv_policy::copy)
      .def_prop_ro("slots", &Store::slots)
      .def("evict", &Store::evict, "clock"_a, NoGil())
      .def("scan", scan, "table"_a, "slot"_a)
      .def("export_slot", export_slot, "slot"_a, "since_cut"_a = 0)
      .def("import_slot", &Store::import_slot, "image"_a, NoGil(),
           nb::sig("def import_slot(self, image: bytes | NDArray[numpy.uint8]) -> None"))
      .def("copy_slot", &Store::copy_slot, "slot"_a, "since_cut"_a, "into"_a, "part_bytes"_a = SIZE_MAX, NoGil())
      .def("tables", &Store::tables)
      .def("is_open", &Store::is_open, "slot"_a, NoGil())
      .def("clear_slot", &Store::clear_slot, "slot"_a, NoGil())
      .def("cut", &Store::cut)
      .def("dirty_rows", &Store::dirty_rows, "slot"_a, "since_cut"_a = 0, NoGil())
      .def("load", &Store::load, "slot"_a)
      .def("rows", nb::overload_cast<>(&Store::rows, nb::const_))
      .def("rows", nb::overload_cast<TableId>(&Store::rows, nb::const_), "table"_a)
      .def("resident_bytes", &Store::resident_bytes)
      .def("slot_of", slots_of, "table"_a, "keys"_a);
  bind_probe_loop(m);
}
