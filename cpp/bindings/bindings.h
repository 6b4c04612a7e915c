// Declarations that the binding files share: arrays as arguments and results, and one bind function per file.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <span>

#include "base/types.h"

namespace nb = nanobind;
using namespace nb::literals;

using NoGil = nb::call_guard<nb::gil_scoped_release>;  // for calls that touch no Python object

// Arguments that are arrays; see the caster below.
using KeyArray = std::span<const int64_t>;
using TableArray = std::span<const uint16_t>;
using ByteArray = std::span<const uint8_t>;
using FloatArray = std::span<const float>;

// Calls `work` without the GIL.
template <class Work>
auto released(const Work& work) {
  nb::gil_scoped_release release;
  return work();
}

// Gives a vector's memory to NumPy without a copy, in rows of `width` elements if that is not 0.
template <class T>
nb::object to_numpy(std::vector<T> values, size_t width = 0) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  if (width == 0) return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), {kept->size()}, owner));
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), {kept->size() / width, width}, owner));
}

using BatchTuple =
    std::tuple<uint32_t, uint32_t, uint64_t, uint64_t>;  // samples of the shard (0: unknown), shard, first, count

inline std::vector<springtide::BatchRange> batches_of(const std::vector<BatchTuple>& tuples) {
  std::vector<springtide::BatchRange> batches;
  for (const auto& [samples, shard, first, count] : tuples) batches.push_back({samples, shard, first, count});
  return batches;
}

// Returns the enum value with this name. Throws springtide.errors.UnknownName for any other name.
template <class Enum, size_t N>
Enum parse(const char* kind, const std::string& name, const std::array<const char*, N>& known) {
  for (size_t i = 0; i < N; ++i) {
    if (name == known[i]) return static_cast<Enum>(i);
  }
  nb::list names;
  for (const char* one : known) names.append(one);
  nb::object type = nb::module_::import_("springtide.errors").attr("UnknownName");
  nb::object error = type(kind, name, names);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

// Copies one field of `stats` to the dict `out`.
#define SPRINGTIDE_ENTRY(name) out[#name] = stats.name;
// A function that returns these fields of `stats()` as a dict.
#define SPRINGTIDE_STATS(Class, FIELDS) \
  [](const Class& self) {               \
    const auto stats = self.stats();    \
    nb::dict out;                       \
    FIELDS(SPRINGTIDE_ENTRY)            \
    return out;                         \
  }

void bind_store(nb::module_& m);       // TableSpec, Hyper, Store
void bind_probe_loop(nb::module_& m);  // the loop that `bench store` compares with
void bind_server(nb::module_& m);
void bind_client(nb::module_& m);       // backends, StepRows, Pending
void bind_schedule(nb::module_& m);     // Scheduler, Scheduled, CachePlan
void bind_cache(nb::module_& m);        // CachedBackend, VersionedBackend
void bind_payload(nb::module_& m);      // payloads of data workers
void bind_records(nb::module_& m);      // distinct integers, envelopes, Kafka messages
void bind_known_calls(nb::module_& m);  // known torch calls of a split forward()
void bind_references(nb::module_& m);   // references of watched objects

namespace nanobind::detail {

// A NumPy array as a std::span. The array is used in place and never converted, because a converted copy of an output
// array would leave the caller's array empty.
template <class T>
  requires std::is_arithmetic_v<T>
struct type_caster<std::span<T>> {
  using Array = type_caster<ndarray<T, ndim<1>, c_contig, device::cpu>>;
  NB_TYPE_CASTER(std::span<T>, Array::Name)
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    Array array;
    if (!array.from_python(source, flags & ~cast_flags::convert, cleanup)) return false;
    value = {array.value.data(), array.value.size()};
    return true;
  }
};

}  // namespace nanobind::detail
