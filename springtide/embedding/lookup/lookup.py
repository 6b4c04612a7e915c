"""Groups lookups: requests the rows of all modules of a batch together, and pools all of them when the first module
is called.

In: batches before the loop sees them (`prefetch`), and calls of served modules. Out: outputs for the modules, and
gradients for the push (`pending_parts`). Next: embedding/lookup/row_batch.py pulls and pools, worker/step pushes.
"""

import functools
import itertools
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
import torch.overrides

from springtide.embedding.device.copies import RegisteredMemory
from springtide.embedding.device.request_line import LatePart
from springtide.embedding.lookup import compile_guard, device_lookup, id_routes, pulled_rows, row_batch
from springtide.embedding.lookup.batch_copies import BatchCopies, SameIds
from springtide.embedding.lookup.calls import Call, DeviceCall, LookupCall
from springtide.embedding.lookup.device_lookup import PreparedCalls, PreparedOutputs
from springtide.embedding.lookup.id_routes import CallCache, FoundCall
from springtide.embedding.lookup.pulled_rows import Kind, PooledPulledRows, PulledRows
from springtide.embedding.lookup.row_batch import Gathered, Pooled, RowPlan
from springtide.embedding.lookup.row_gradients import DeviceGradients
from springtide.embedding.lookup.table_client import RowGradients, TableClient

log = logging.getLogger(__name__)

TRIES = 3
"""After this many misses, ids count as computed by the model. After this many unused prefetches, a route is dropped."""


Outputs = tuple[torch.Tensor, ...]


class Crossed(NamedTuple):
    """Batch with the results that data workers computed from it. The results include ids that forward() would have
    computed."""

    batch: Any
    crossing: tuple[Any, ...]


class MovedIds(NamedTuple):
    """Tensor of ids that the script has moved to a device, with the ids of several calls."""

    ids: torch.Tensor
    order: int
    """Number of such tensors that this step used before this tensor."""


class Caller(Protocol):
    """Served module that turns its inputs into a LookupCall."""

    def call(self, *inputs: Any) -> Call: ...


@dataclass(slots=True, eq=False)
class _Learnt:
    """Facts about one module's nth call in a step: the routes to its ids, and how often they missed."""

    module: Caller
    tables: set[int]
    inputs: tuple[id_routes.Route | None, ...] | None = None
    misses: int = 0
    unused: int = 0


@dataclass(slots=True, eq=False)
class _Prefetched:
    """Lookup call of a batch whose rows were requested before the module was called."""

    group: "_Group"
    first: int
    call: Call
    learnt: _Learnt
    used: bool = False
    outs: tuple[torch.Tensor, ...] | None = None


@dataclass(slots=True, eq=False)
class _Group:
    """Calls of a batch whose rows are pooled together."""

    gathered: Gathered | None
    """Rows of the calls; None if the rows are in device memory."""
    members: list[_Prefetched] = field(default_factory=list)
    pooled: bool = False


@dataclass(slots=True, eq=False)
class LookupHandle:
    """Batch whose rows have been requested."""

    batch: Any
    calls: dict[tuple[Any, ...], _Prefetched] = field(default_factory=dict)
    moved: dict[int, MovedIds] = field(default_factory=dict)
    """Tensors of ids on a device that calls of this step have used, by address."""
    prepared: list[PreparedOutputs] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _GpuParts:
    """Parts of Lookups that pool the rows of servers on a GPU."""

    copies: BatchCopies = field(default_factory=BatchCopies)
    memory: RegisteredMemory = field(default_factory=RegisteredMemory)


class Lookups:
    """All lookups of one model through one client. Only `prefetch` and `announced` may run in other threads."""

    def __init__(self, client: TableClient) -> None:
        self.client = client
        self._anchor = torch.zeros((), requires_grad=True, device="cpu")
        self._eagerly = compile_guard.outside_graphs(lambda *call, **weights: self.run(*call, **weights))
        self._plans: dict[tuple[int, ...], RowPlan] = {}
        self._learnt: dict[tuple[int, int, int], _Learnt] = {}
        """Knowledge by module, number of the call in a step, and kind of batch."""
        self._replays: defaultdict[int, CallCache] = defaultdict(CallCache)
        self._prepared: dict[Any, PreparedCalls] = {}
        """Calls of earlier steps, by the layout of the tensor that has their ids."""
        self._counts: dict[int, int] = {}
        self._active: LookupHandle | None = None
        self._pending: list[Gathered | DeviceGradients] = []
        self.after_step = 0
        """Step of the bsp group that must be complete before pulls without a prefetch are answered. worker/step/step.py
        raises it."""
        self._gpu: _GpuParts | None = None
        self.hits = 0
        self.misses = 0
        self.fixed = False
        """Whether a schedule relies on the known routes. While True, no route is forgotten."""

    def pool_on_gpu(self) -> None:
        """Pool the rows of servers on the GPU, if the model is on one."""
        self._gpu = _GpuParts()

    # -- batches (called by the iterator)

    def prefetch(self, batch: Any, *, after_step: int = 0) -> LookupHandle:
        """Request the rows of a later batch, for all modules whose route to their ids is known."""
        self.place()
        handle = LookupHandle(batch)
        self._request(handle, batch, after_step)
        return handle

    def place(self) -> None:
        """Bring rows into device memory if the model is on a GPU."""
        tables = self.client.on_device
        read = functools.partial(self.client.images, after_step=self.after_step)
        if tables is not None and not self._pending and tables.place(read):
            self._replays.clear()

    def release(self) -> None:
        """Take rows out of device memory, because other workers are going to train them too."""
        if self.on_device:
            assert self.client.on_device is not None
            self.client.on_device.release()
            self._replays.clear()
            self._prepared.clear()

    @property
    def on_device(self) -> bool:
        """Return True if rows are in device memory."""
        return self.client.on_device is not None and bool(self.client.on_device.by_name)

    @property
    def all_on_device(self) -> bool:
        """Return True if all rows are in device memory, so that steps neither pull nor push rows."""
        tables = self.client.on_device
        return tables is not None and 0 < len(tables.tables) == len(tables.by_name)

    def _request(self, handle: LookupHandle, batch: Any, after_step: int) -> list[FoundCall]:
        """Add the calls that `batch` is expected to make to the handle, and return these calls."""
        replay = self._replays[_kind(batch)]
        known_calls = replay.recall(batch)
        found = self._follow(batch) if known_calls is None else known_calls
        if known_calls is None and found:
            replay.note(batch, found)
        kinds: dict[Kind | None, list[LookupCall]] = {}
        kind_of = [self._kind_of(known.call) for known in found]
        for known, kind in zip(found, kind_of, strict=True):
            if isinstance(known.call, LookupCall):
                kinds.setdefault(kind, []).append(known.call)
        groups = {kind: _Group(self._gather(calls, kind, after_step)) for kind, calls in kinds.items()}
        on_device, firsts = _Group(None), dict.fromkeys(kinds, 0)
        for known, kind in zip(found, kind_of, strict=True):
            rows = isinstance(known.call, LookupCall)
            group, first = (groups[kind], firsts[kind]) if rows else (on_device, 0)
            ready = handle.calls[known.key] = _Prefetched(group, first, known.call, known.learnt)
            group.members.append(ready)
            if rows:
                firsts[kind] += len(known.call.features)
        return found

    def _kind_of(self, call: Call) -> Kind | None:
        """Return how the GPU pools the rows of this lookup; None if the CPU does, or if the rows are on the GPU."""
        return pulled_rows.kind_of(call) if self._gpu is not None and isinstance(call, LookupCall) else None

    def _gather(self, calls: Sequence[LookupCall], kind: Kind | None, after_step: int) -> Gathered:
        if kind is None or self._gpu is None:
            return Gathered(self.client, self._plan(calls), calls, after_step=after_step)
        plan = self._plan(calls, wire_order=True)
        return PulledRows(self.client, plan, calls, kind, self._gpu.memory, after_step=after_step)

    def announced(self, batch: Any) -> list[LookupCall]:
        """Return the lookup calls that this batch is expected to make, without requesting rows. Thread-safe."""
        return [learnt.call for learnt in self._follow(batch) if isinstance(learnt.call, LookupCall)]

    @property
    def settled(self) -> bool:
        """Return True if, for every called module, the route to its ids is known, or it is known that the model
        computes the ids."""
        known = list(self._learnt.values())
        return bool(known) and all(learnt.inputs is not None or learnt.misses >= TRIES for learnt in known)

    def computed(self) -> set[int]:
        calls = [learnt for learnt in list(self._learnt.values()) if learnt.inputs is None]
        return {table for call in calls for table in call.tables}

    def _follow(self, batch: Any) -> list[FoundCall]:
        """Return the lookup calls that this batch is expected to make, by following the routes to their ids."""
        found: list[FoundCall] = []
        kind = _kind(batch)
        for (module_id, _, known_kind), learnt in list(self._learnt.items()):
            if learnt.inputs is None or known_kind is not kind:
                continue
            inputs = tuple(None if route is None else route.follow(batch) for route in learnt.inputs)
            if inputs[0] is None or any((i is None) != (r is None) for i, r in zip(inputs, learnt.inputs, strict=True)):
                continue
            found.append(FoundCall(_call_key(module_id, inputs), learnt.module.call(*inputs), learnt.inputs, learnt))
        return found

    def begin(self, handle: LookupHandle) -> None:
        self._retire()
        self._active = handle
        if self._gpu is not None:
            self._gpu.copies.begin(handle.batch)
            for ready in handle.calls.values():
                if isinstance(ready.group.gathered, PulledRows):
                    ready.group.gathered.await_ids()
        self._counts.clear()

    def learn(self, batch: Any) -> None:
        self.begin(LookupHandle(batch))

    # -- lookups (called by modules)

    def run(self, module: Caller, *inputs: Any, weights: torch.Tensor | None = None) -> Outputs:
        """Return the outputs of one call of a module. `weights` are per-sample weights, which cannot be prefetched."""
        if torch.compiler.is_compiling():
            outs: Outputs = self._eagerly(module, *inputs, weights=weights)
            return outs
        if not torch._C._len_torch_function_stack():
            if (made := self._prepared_output(module, inputs, weights)) is not None:
                return made
        else:
            mode: Any = torch.overrides._get_current_function_mode()
            if hasattr(mode, "at_lookup"):  # dataworker/split/recorder/call_recorder.py records no calls in a lookup
                binding = getattr(module, "springtide_binding", None)
                mode.at_lookup(binding.tables[0].name if binding is not None else "", (*inputs, weights))
                with torch._C.DisableTorchFunction():
                    return self._run(module, *inputs, weights=weights)
        return self._run(module, *map(id_routes.real, inputs), weights=id_routes.real(weights))

    def _prepared_output(self, module: Caller, inputs: tuple[Any, ...], weights: Any) -> Outputs | None:
        """Return the output for this call that an earlier call of the same step computed; None if there is none."""
        handle = self._active
        if handle is None or not handle.prepared or weights is not None or type(inputs[0]) is not torch.Tensor:
            return None
        for prepared in handle.prepared:
            if (out := prepared.take(id(module), inputs[0])) is not None:
                self._counts[id(module)] = self._counts.get(id(module), 0) + 1
                return (out,)
        return None

    def _run(self, module: Caller, *inputs: Any, weights: torch.Tensor | None) -> Outputs:
        if (made := self._prepared_output(module, inputs, weights)) is not None:
            return made
        count = self._counts[id(module)] = self._counts.get(id(module), 0) + 1
        handle = self._active
        if handle is not None:
            ready, known = self._prefetched(handle, module, inputs)
            if ready is not None:
                self.hits += 1
                ready.used = True
                if weights is None:
                    return self._grouped(ready)
                return self._pool(ready.group.gathered, [(ready.first, module.call(*known, weights))])
            self.misses += 1
        call = module.call(*inputs) if weights is None else module.call(*inputs, weights)
        if isinstance(call, DeviceCall):
            return self._on_device(module, count, inputs, call)
        if handle is not None and not self.fixed:
            self._note(module, count, handle.batch, known, call)
        return self._pool(self._unannounced([call]), [(0, call)])

    def _prefetched(
        self, handle: LookupHandle, module: Caller, inputs: tuple[Any, ...]
    ) -> tuple[_Prefetched | None, tuple[Any, ...]]:
        """Return the prefetched call with these inputs, and the inputs in CPU memory. If the loop has copied ids of the
        batch to the GPU, the call was prefetched with the batch's own ids."""
        ready = handle.calls.get(_call_key(id(module), inputs))
        gpu = self._gpu
        if ready is not None or gpu is None or not any(_is_on_gpu(given) for given in inputs):
            return ready, inputs
        found = [gpu.copies.find(given) if _is_on_gpu(given) else given for given in inputs]
        if any(same is None for same, given in zip(found, inputs, strict=True) if given is not None):
            return None, inputs
        known = tuple(same.ids if isinstance(same, SameIds) else same for same in found)
        ready = handle.calls.get(_call_key(id(module), known))
        checks = [same.differs for same in found if isinstance(same, SameIds) and same.differs is not None]
        rows = None if ready is None else ready.group.gathered
        if isinstance(rows, PulledRows):
            for differs in checks:
                rows.check(differs)
        elif any(bool(differs) for differs in checks):
            return None, inputs
        return ready, known

    def run_together(self, calls: Sequence[Any]) -> list[Outputs]:
        gathered = self._unannounced(calls)
        firsts = [sum(len(call.features) for call in calls[:i]) for i in range(len(calls))]
        outs = self._pool(gathered, list(zip(firsts, calls, strict=True)))
        ends = [sum(len(call.shapes) for call in calls[:i]) for i in range(len(calls) + 1)]
        return [outs[begin:end] for begin, end in itertools.pairwise(ends)]

    def _unannounced(self, calls: Sequence[LookupCall]) -> Gathered:
        """Request the rows of calls that were not prefetched."""
        self.client.before_read([feature.table.spec.id for call in calls for feature in call.features])
        kinds = {self._kind_of(call) for call in calls}
        return self._gather(calls, kinds.pop() if len(kinds) == 1 else None, self.after_step)

    def _on_device(self, module: Caller, count: int, inputs: tuple[Any, ...], call: DeviceCall) -> Outputs:
        """Look up a call that was not prefetched. If its ids are a view of a tensor on the device, also look up the
        calls that earlier steps made with other views of this tensor."""
        handle = self._active
        if handle is not None and not self.fixed:
            batch, whole = handle.batch, inputs[0]._base
            if whole is not None and whole.device == call.ids.device and _on_gpu(whole):
                batch = handle.moved.get(whole.data_ptr())
                if batch is None:
                    batch = handle.moved[whole.data_ptr()] = MovedIds(whole, len(handle.moved))
                    out = self._with_others(handle, batch, module, inputs)
                    if out is not None and call.weights is None:
                        return out
            if batch is not handle.batch or not _on_gpu(inputs[0]):
                self._note(module, count, batch, inputs, call)
        return self._pool(None, [(0, call)])

    def _with_others(self, handle: LookupHandle, batch: MovedIds, module: Caller, inputs: Any) -> Outputs | None:
        """Look up all calls that are expected to use the ids of this tensor; return the output of this call."""
        whole, tables = batch.ids, self.client.on_device
        layout = (batch.order, whole.dtype, whole.shape, whole.stride())
        if torch.is_grad_enabled() and layout in self._prepared and tables is not None:
            made = self._prepared[layout].look_up(whole, tables, self._anchor, self._after_device)
            handle.prepared.append(made)
            out = made.take(id(module), inputs[0])
            return None if out is None else (out,)
        found = self._request(handle, batch, 0)
        views = [known.inputs[0].follow(batch) for known in found if known.inputs[0] is not None]
        calls = [known.call for known in found]
        if calls and all(isinstance(call, DeviceCall) and call.offsets is None for call in calls):
            modules = [known.key[0] for known in found]
            self._prepared[layout] = PreparedCalls(whole, list(zip(modules, views, calls, strict=True)))  # type: ignore[arg-type]
        ready = handle.calls.get(_call_key(id(module), inputs))
        if ready is None:
            return None
        ready.used = True
        return self._grouped(ready)

    def _grouped(self, ready: _Prefetched) -> Outputs:
        """Return the outputs of one prefetched call. The first call pools the rows of all prefetched calls. Each output
        is returned only once."""
        group = ready.group
        if torch.is_grad_enabled() and not group.pooled:
            group.pooled = True
            outs = self._pool(group.gathered, [(member.first, member.call) for member in group.members])
            at = 0
            for member in group.members:
                member.outs = outs[at : at + len(member.call.shapes)]
                at += len(member.call.shapes)
        if ready.outs is None or not torch.is_grad_enabled():
            return self._pool(group.gathered, [(ready.first, ready.call)])
        mine, ready.outs = ready.outs, None
        return mine

    def _pool(self, gathered: Gathered | None, calls: Sequence[tuple[int, Any]]) -> Outputs:
        if gathered is None:
            assert self.client.on_device is not None
            return device_lookup.look_up(
                self.client.on_device, [call for _, call in calls], self._anchor, self._after_device
            )
        on_gpu = isinstance(gathered, PulledRows)
        if not on_gpu and len(calls) == 1 and row_batch.fits(gathered, calls[0][1]):
            return (row_batch.PooledColumns.apply(self._anchor, gathered, calls[0][1], self._after_backward),)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            trained = any(weight.requires_grad for weight in gathered.plan.weights)
        anchor = self._anchor if trained else self._anchor.detach()
        function: Any = PooledPulledRows if on_gpu else Pooled
        outs: Outputs = function.apply(
            anchor, gathered, calls, self._after_backward, *(call.weights for _, call in calls)
        )
        return outs

    def _plan(self, calls: Sequence[LookupCall], *, wire_order: bool = False) -> RowPlan:
        if len(calls) == 1:
            features = calls[0].features
            key: tuple[int, ...] = (wire_order, id(features))
        else:
            features = tuple(feature for call in calls for feature in call.features)
            key = (wire_order, *map(id, features))
        plan = self._plans.get(key)
        if plan is None or plan.features != features:
            plan = self._plans[key] = RowPlan(features, wire_order=wire_order)
        return plan

    # -- gradients (called by the optimizer)

    def _after_backward(self, gathered: Gathered, groups: Sequence[int]) -> None:
        shared: Any = self._take_shared(gathered)
        if shared:
            gathered = Gathered.merged(self.client, [*shared, gathered])
            groups = range(len(gathered.plan.weights))
        gathered.show(groups)
        self._pending.append(gathered)

    def _after_device(self, rows: DeviceGradients) -> None:
        shared: Any = self._take_shared(rows)
        if shared:
            rows = rows.merged(shared)
        rows.show()
        self._pending.append(rows)

    def _take_shared(self, new: Gathered | DeviceGradients) -> list[Gathered | DeviceGradients]:
        """Remove and return the pending gradients that share a table with the new gradients."""
        others = [other for other in self._pending if other is not new and other.settle()]
        weights = {id(weight) for weight in new.weights}
        shared = [other for other in others if any(id(weight) in weights for weight in other.shown_weights)]
        self._pending = [other for other in others if other not in shared]
        return shared

    def pending_parts(self) -> list[RowGradients]:
        """Return the rows with gradients since the last push. No two parts contain the same key."""
        self._pending = [gathered for gathered in self._pending if gathered.settle()]
        return [gathered if isinstance(gathered, LatePart) else gathered.step for gathered in self._pending]

    def clear(self) -> None:
        """After a push, drop the gradients and the outputs of this batch."""
        for gathered in self._pending:
            gathered.drop()
        self._pending.clear()
        self._retire()

    # -- routes

    def _note(self, module: Caller, count: int, batch: Any, inputs: tuple[Any, ...], call: Call) -> None:
        kind = _kind(batch)
        key = (id(module), count, kind)
        if key not in self._learnt:
            self._learnt[key] = _Learnt(module, {feature.table.spec.id for feature in call.features})
        learnt = self._learnt[key]
        if learnt.misses >= TRIES:
            return
        self._replays[kind].forget()
        self._prepared.clear()
        found = tuple(None if given is None else id_routes.find(batch, given) for given in inputs)
        learnt.inputs = None
        if all((route is None) == (given is None) for route, given in zip(found, inputs, strict=True)):
            learnt.inputs, learnt.misses = found, 0
            return
        learnt.misses += 1
        if learnt.misses == TRIES:
            log.info(
                "ids of %s are not a view of %s, so the table pulls its rows when the module is called, without "
                "prefetching",
                type(module).__name__,
                "data that came with the batch" if kind else "the batch",
            )

    def _retire(self) -> None:
        """Drop the active batch, and forget routes that were unused for several batches in a row."""
        handle, self._active = self._active, None
        for ready in () if handle is None else handle.calls.values():
            ready.group.members.clear()  # break this reference, so that later steps can reuse the memory of the rows
        if handle is not None and any(outs.unused for outs in handle.prepared):
            self._prepared.clear()
        if handle is None or self.fixed or not any(ready.used for ready in handle.calls.values()):
            return
        for ready in handle.calls.values():
            learnt = ready.learnt
            learnt.unused = 0 if ready.used else learnt.unused + 1
            if learnt.unused >= TRIES:
                learnt.inputs, learnt.misses, learnt.unused = None, 0, 0
                for replay in self._replays.values():
                    replay.forget()


def _kind(batch: Any) -> int:
    return 2 + batch.order if isinstance(batch, MovedIds) else int(isinstance(batch, Crossed))


def _on_gpu(ids: torch.Tensor) -> bool:
    return ids.is_cuda


def _is_on_gpu(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and _on_gpu(given)


def _call_key(module_id: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
    # handle bags without offsets first, because they are by far the most frequent
    if len(inputs) == 2 and inputs[1] is None:
        return (module_id, id_routes.key_of(inputs[0]), None)
    return (module_id, *(None if given is None else id_routes.key_of(given) for given in inputs))
