"""Group lookups: request the rows of all modules of a batch together, and pool all of them when the first module is
called.

In: batches before the loop sees them (`prefetch`), and calls of served modules. Out: outputs for the modules, and
gradients for the push (`pending_parts`). Next: embedding/lookup/row_batch.py pulls and pools, worker/step pushes.
"""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
import torch.overrides

from springtide import _native
from springtide.embedding.lookup import compile_guard, id_routes, row_batch
from springtide.embedding.lookup.calls import LookupCall
from springtide.embedding.lookup.id_routes import CallCache, FoundCall
from springtide.embedding.lookup.row_batch import Gathered, Pooled, RowPlan
from springtide.embedding.lookup.table_client import TableClient

log = logging.getLogger(__name__)

TRIES = 3
"""Number of misses after which ids count as computed by the model, and of unused prefetches after which a route is
dropped."""


class Crossed(NamedTuple):
    """Batch with the results that data workers computed from it, including ids that forward() would have computed."""

    batch: Any
    crossing: tuple[Any, ...]


class Caller(Protocol):
    """Served module that turns its inputs into a LookupCall."""

    def call(self, *inputs: Any) -> LookupCall: ...


@dataclass(slots=True, eq=False)
class _Learnt:
    """Knowledge about one module's nth call in a step: the routes to its ids, and its misses."""

    module: Caller
    tables: set[int]
    inputs: tuple[id_routes.Route | None, ...] | None = None
    misses: int = 0
    unused: int = 0


@dataclass(slots=True, eq=False)
class _Prefetched:
    """Lookup call of a batch whose rows were requested before the module was called."""

    first: int
    call: LookupCall
    learnt: _Learnt
    used: bool = False
    outs: tuple[torch.Tensor, ...] | None = None


@dataclass(slots=True, eq=False)
class LookupHandle:
    """Batch whose rows have been requested."""

    batch: Any
    gathered: Gathered | None = None
    calls: dict[tuple[Any, ...], _Prefetched] = field(default_factory=dict)
    pooled: bool = False


class Lookups:
    """All lookups of one model through one client. Only `prefetch` and `announced` may run in other threads."""

    def __init__(self, client: TableClient) -> None:
        self.client = client
        self._anchor = torch.zeros((), requires_grad=True, device="cpu")
        self._eagerly = compile_guard.outside_graphs(lambda *call, **weights: self.run(*call, **weights))
        self._plans: dict[tuple[int, ...], RowPlan] = {}
        self._learnt: dict[tuple[int, int, bool], _Learnt] = {}
        """Knowledge by module, number of the call in a step, and whether the batch was `Crossed`."""
        self._replays = {False: CallCache(), True: CallCache()}
        self._counts: dict[int, int] = {}
        self._active: LookupHandle | None = None
        self._pending: list[Gathered] = []
        self.after_step = 0
        """Step of the bsp group that must be complete before pulls without a prefetch are answered. worker/step/step.py
        raises it."""
        self.hits = 0
        self.misses = 0
        self.fixed = False
        """Whether a schedule relies on the known routes. While True, no route is forgotten."""

    # -- batches (called by the iterator)

    def prefetch(self, batch: Any, *, after_step: int = 0) -> LookupHandle:
        """Request the rows of a later batch, for all modules whose route to their ids is known."""
        handle = LookupHandle(batch)
        replay = self._replays[isinstance(batch, Crossed)]
        found = replay.recall(batch)
        if found is None and (found := self._follow(batch)):
            replay.note(batch, found)
        if not found:
            return handle
        calls = [learnt.call for learnt in found]
        handle.gathered = Gathered(self.client, self._plan(calls), calls, after_step=after_step)
        first = 0
        for known in found:
            handle.calls[known.key] = _Prefetched(first, known.call, known.learnt)
            first += len(known.call.features)
        return handle

    def announced(self, batch: Any) -> list[LookupCall]:
        """Return the lookup calls that this batch is known to make, without any request. Thread-safe."""
        return [learnt.call for learnt in self._follow(batch)]

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
        """Return the lookup calls that this batch is known to make, by following the routes to their ids."""
        found: list[FoundCall] = []
        crossed = isinstance(batch, Crossed)
        for (module_id, _, kind), learnt in list(self._learnt.items()):
            if learnt.inputs is None or kind is not crossed:
                continue
            inputs = tuple(None if route is None else route.follow(batch) for route in learnt.inputs)
            if inputs[0] is None or any((i is None) != (r is None) for i, r in zip(inputs, learnt.inputs, strict=True)):
                continue
            found.append(FoundCall(_call_key(module_id, inputs), learnt.module.call(*inputs), learnt.inputs, learnt))
        return found

    def begin(self, handle: LookupHandle) -> None:
        self._retire()
        self._active = handle
        self._counts.clear()

    def learn(self, batch: Any) -> None:
        self.begin(LookupHandle(batch))

    # -- lookups (called by modules)

    def run(self, module: Caller, *inputs: Any, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Return the outputs of one call of a module. `weights` are per-sample weights, which cannot be prefetched."""
        if torch.compiler.is_compiling():
            outs: tuple[torch.Tensor, ...] = self._eagerly(module, *inputs, weights=weights)
            return outs
        if torch._C._len_torch_function_stack():
            mode: Any = torch.overrides._get_current_function_mode()
            if hasattr(mode, "at_lookup"):  # dataworker/split/recorder/call_recorder.py records no calls in a lookup
                binding = getattr(module, "springtide_binding", None)
                mode.at_lookup(binding.tables[0].name if binding is not None else "", (*inputs, weights))
                with torch._C.DisableTorchFunction():
                    return self._run(module, *inputs, weights=weights)
        return self._run(module, *map(id_routes.real, inputs), weights=id_routes.real(weights))

    def _run(self, module: Caller, *inputs: Any, weights: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        count = self._counts[id(module)] = self._counts.get(id(module), 0) + 1
        handle = self._active
        if handle is not None:
            key = _call_key(id(module), inputs)
            ready = handle.calls.get(key)
            if ready is not None:
                self.hits += 1
                ready.used = True
                if weights is None:
                    return self._grouped(handle, ready)
                call = module.call(*inputs, weights)
                assert handle.gathered is not None
                return self._pool(handle.gathered, [(ready.first, call)])
            self.misses += 1
        call = module.call(*inputs) if weights is None else module.call(*inputs, weights)
        plan = self._unannounced([call])
        if handle is not None and not self.fixed:
            self._note(module, count, handle.batch, inputs, call)
        gathered = Gathered(self.client, plan, [call], after_step=self.after_step)
        return self._pool(gathered, [(0, call)])

    def run_together(self, calls: Sequence[LookupCall]) -> list[tuple[torch.Tensor, ...]]:
        gathered = Gathered(self.client, self._unannounced(calls), calls, after_step=self.after_step)
        firsts = [sum(len(call.features) for call in calls[:i]) for i in range(len(calls))]
        outs = self._pool(gathered, list(zip(firsts, calls, strict=True)))
        ends = [sum(len(call.shapes) for call in calls[:i]) for i in range(len(calls) + 1)]
        return [outs[begin:end] for begin, end in itertools.pairwise(ends)]

    def _unannounced(self, calls: Sequence[LookupCall]) -> RowPlan:
        plan = self._plan(calls)
        self.client.before_read(plan.tables)
        return plan

    def _grouped(self, handle: LookupHandle, ready: _Prefetched) -> tuple[torch.Tensor, ...]:
        """Return the outputs of one prefetched call. The first call pools the rows of all prefetched calls; each output
        is handed out once."""
        assert handle.gathered is not None
        if torch.is_grad_enabled() and not handle.pooled:
            handle.pooled = True
            everyone = list(handle.calls.values())
            outs = self._pool(handle.gathered, [(ready.first, ready.call) for ready in everyone])
            at = 0
            for ready_call in everyone:
                ready_call.outs = outs[at : at + len(ready_call.call.shapes)]
                at += len(ready_call.call.shapes)
        if ready.outs is None or not torch.is_grad_enabled():
            return self._pool(handle.gathered, [(ready.first, ready.call)])
        mine, ready.outs = ready.outs, None
        return mine

    def _pool(self, gathered: Gathered, calls: Sequence[tuple[int, LookupCall]]) -> tuple[torch.Tensor, ...]:
        if len(calls) == 1 and row_batch.fits(gathered, calls[0][1]):
            return (row_batch.PooledColumns.apply(self._anchor, gathered, calls[0][1], self._after_backward),)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            trained = any(weight.requires_grad for weight in gathered.plan.weights)
        anchor = self._anchor if trained else self._anchor.detach()
        outs: tuple[torch.Tensor, ...] = Pooled.apply(  # type: ignore[no-untyped-call]
            anchor, gathered, calls, self._after_backward, *(call.weights for _, call in calls)
        )
        return outs

    def _plan(self, calls: Sequence[LookupCall]) -> RowPlan:
        if len(calls) == 1:
            features = calls[0].features
            key: tuple[int, ...] = (id(features),)
        else:
            features = tuple(feature for call in calls for feature in call.features)
            key = tuple(map(id, features))
        plan = self._plans.get(key)
        if plan is None or plan.features != features:
            plan = self._plans[key] = RowPlan(features)
        return plan

    # -- gradients (called by the optimizer)

    def _after_backward(self, gathered: Gathered, groups: Sequence[int]) -> None:
        others = [other for other in self._pending if other is not gathered and other.settle()]
        shared = [other for other in others if other.shares_weights(gathered)]
        self._pending = [other for other in others if other not in shared]
        if shared:
            gathered = Gathered.merged(self.client, [*shared, gathered])
            groups = range(len(gathered.plan.weights))
        gathered.show(groups)
        self._pending.append(gathered)

    def pending_parts(self) -> list[_native.StepRows]:
        """Return the rows with gradients since the last push. No key is in two parts."""
        self._pending = [gathered for gathered in self._pending if gathered.settle()]
        return [gathered.step for gathered in self._pending]

    def clear(self) -> None:
        """Drop gradients after a push, and retire the outputs of this batch."""
        for gathered in self._pending:
            for group in gathered.shown:
                gathered.plan.weights[group].grad = None
        self._pending.clear()
        self._retire()

    # -- routes

    def _note(self, module: Caller, count: int, batch: Any, inputs: tuple[Any, ...], call: LookupCall) -> None:
        kind = isinstance(batch, Crossed)
        key = (id(module), count, kind)
        if key not in self._learnt:
            self._learnt[key] = _Learnt(module, {feature.table.spec.id for feature in call.features})
        learnt = self._learnt[key]
        if learnt.misses >= TRIES:
            return
        self._replays[kind].forget()
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
                "what came with the batch" if kind else "the batch",
            )

    def _retire(self) -> None:
        """Drop the active batch, and forget routes that were unused for several batches in a row."""
        handle, self._active = self._active, None
        if handle is None or self.fixed or not any(ready.used for ready in handle.calls.values()):
            return
        for ready in handle.calls.values():
            learnt = ready.learnt
            learnt.unused = 0 if ready.used else learnt.unused + 1
            if learnt.unused >= TRIES:
                learnt.inputs, learnt.misses, learnt.unused = None, 0, 0
                self._replays[isinstance(handle.batch, Crossed)].forget()


def _call_key(module_id: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
    if len(inputs) == 2 and inputs[1] is None:  # bags without offsets are by far the most frequent
        return (module_id, id_routes.key_of(inputs[0]), None)
    return (module_id, *(None if given is None else id_routes.key_of(given) for given in inputs))
