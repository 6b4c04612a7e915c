// Shared by the binding files: array types that are never converted silently, and one bind function per file.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

// Every array argument is bound with .noconvert(): a silent copy of an output would be filled and dropped.
using KeyArray = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TableArray = nb::ndarray<const uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_errors(nb::module_& m);      // errors.cpp: types.h exceptions -> springtide.errors
void bind_table_spec(nb::module_& m);  // table_spec.cpp: TableSpec, Hyper
void bind_store(nb::module_& m);       // store.cpp: Store and, first, the specs
void bind_probe_loop(nb::module_& m);  // probe_loop.cpp: the bound of the store's benchmark
void bind_server(nb::module_& m);      // server.cpp: Server
void bind_client(nb::module_& m);      // client.cpp: backends, StepRows, Pending
void bind_schedule(nb::module_& m);    // schedule.cpp: Scheduler, Scheduled, CachePlan
void bind_cache(nb::module_& m);       // cache.cpp: CachedBackend, VersionedBackend
void bind_fused(nb::module_& m);       // fused.cpp: pieces of a batch, copied or sent
void bind_secure(nb::module_& m);      // secure.cpp: TLS on a socket of Python
void bind_tensors(nb::module_& m);     // tensors.cpp: tensors by DLPack's table of functions
void bind_distinct(nb::module_& m);    // distinct.cpp: distinct integers, as torch.unique gives them
void bind_messages(nb::module_& m);    // messages.cpp: messages of a Kafka consumer, as columns
void bind_envelope(nb::module_& m);    // envelope.cpp: envelopes of a stream's records
