"""Pools rows of servers on the GPU, and reduces their gradients there.

In: ids in CPU memory, and rows that servers have written to memory in the order of messages. The rows go to the GPU as
they are, because the ids' keys name their places. Out: outputs with autograd, and gradients of unique rows, which go
back the same way. Next: embedding/device/kernels.py, and device/request_line.py for the push.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from springtide import _native, errors
from springtide.embedding.device import kernel_registry
from springtide.embedding.device.copies import RegisteredMemory, copies_of
from springtide.embedding.device.kernels import IdBatch
from springtide.embedding.device.request_line import LatePart
from springtide.embedding.lookup.calls import POOLING, LookupCall
from springtide.embedding.lookup.device_lookup import averaged, bag_gradients, bags_of_calls, weight_gradients
from springtide.embedding.lookup.row_batch import Gathered, RowPlan, differentiable_once
from springtide.embedding.lookup.table_client import TableClient

Calls = Sequence[tuple[int, LookupCall]]
"""Calls, each with the index of its first feature in the plan."""


class Kind(NamedTuple):
    """Properties of lookups that share kernels."""

    device: torch.device
    dim: int
    mean: bool
    """Whether bags have the mean of their rows."""
    reads_padding: bool


def kind_of(call: LookupCall) -> Kind | None:
    """Return the kind of this lookup; lookups of one kind share kernels. Return None if the CPU must pool its rows."""
    kinds = set()
    for feature, bag in zip(call.features, call.bags, strict=True):
        if feature.table.gpu is None or feature.table.on_cpu or bag[0] == POOLING["max"]:
            return None
        reads = feature.pull_padding and feature.padding is not None
        kinds.add(Kind(feature.table.gpu, feature.table.spec.dim, bag[0] == POOLING["mean"], reads))
    return kinds.pop() if len(kinds) == 1 else None


class PulledRows(Gathered, LatePart):
    """Unique rows of calls of one kind."""

    def __init__(
        self,
        client: TableClient,
        plan: RowPlan,
        calls: Sequence[LookupCall],
        kind: Kind,
        memory: RegisteredMemory,
        *,
        after_step: int = 0,
    ) -> None:
        self.kind = kind
        self.plan, self._memory = plan, memory
        self.copies = copies_of(kind.device)
        ids = [ids for call in calls for ids in call.ids]
        self.begins = list(itertools.accumulate((count for _, count, _ in ids), initial=0))
        self._keys, self._rows = self.copies.pinned(self.begins[-1], dtype=torch.int32), torch.empty(0)
        find = functools.partial(_find, client.source, plan.native, calls, ids, self._keys)
        self._found, self._asked = client.gather_later(find, after_step=after_step)
        self._grads: torch.Tensor | None = None
        self._bad = torch.zeros(0)
        self._checks: list[torch.Tensor] = []
        self._marks = torch.zeros(0)
        self._copied: Any = None
        self.shown: dict[int, ShownGroup] = {}  # type: ignore[assignment]

    @property
    def step(self) -> _native.StepRows:  # type: ignore[override]
        return self._found.result()

    def await_ids(self) -> None:
        """Wait until the ids have been read. The script may change them afterwards."""
        self._found.exception()

    def on_device(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys of all ids, and the rows, on the device."""
        if not len(self._rows):
            self._asked.result()
            self._register()
            self._keys = self.copies.to_device(self._keys)
            rows = torch.from_numpy(self.step.rows()).view(-1, self.dim)
            near = self._memory.to_device(rows, self.copies) if len(rows) else None
            self._rows = torch.zeros(1, self.dim, device=self.device) if near is None else near
            self.copies.join(self._keys, self._rows)
        return self._keys, self._rows

    def _register(self) -> None:
        if self.copies.cuda:
            self._memory.add(self.step.memory())

    @property
    def device(self) -> torch.device:
        return self.kind.device

    @property
    def dim(self) -> int:
        return self.kind.dim

    def check(self, differs: torch.Tensor) -> None:
        """Refuse the push if this number on the device is not 0, which means that the loop looked up other ids than
        those of the batch."""
        if not any(known is differs for known in self._checks):
            self._checks.append(differs)

    def add_gradients(self, grads: torch.Tensor, bad: torch.Tensor) -> None:
        if self._grads is not None:
            grads, bad = grads + self._grads, torch.maximum(bad, self._bad)
        self._grads, self._bad = grads, bad

    # -- weight.grad

    def show(self, groups: Sequence[int]) -> None:
        for group in groups:
            shown = self.shown[group] = ShownGroup(self, group)
            self.plan.weights[group].grad = shown  # type: ignore[assignment]

    def rows_of(self, group: int) -> torch.Tensor:
        return torch.from_numpy(self.step.rows_of_group(group)).to(self.device)

    def gradients(self) -> torch.Tensor:
        assert self._grads is not None
        return self._grads

    def settle(self) -> bool:
        for group, shown in list(self.shown.items()):
            now = self.plan.weights[group].__dict__["springtide_grad"]
            if now is None:
                self.step.untouch(group)
                del self.shown[group]
            elif now is not shown or shown.changed:
                given = shown.made if now is shown or now is shown.made else now
                self.gradients()[self.rows_of(group)] = given.to(self.device).view(-1, self.dim)
                self._bad = (~self.gradients().isfinite().all()).float().view(1)
        return bool(self.shown)

    def drop(self) -> None:
        super().drop()
        self.shown.clear()  # drop these references, so that the next step can reuse the memory of the rows

    # -- the push

    def begin_copy(self) -> None:
        grads = self.gradients()
        host = torch.from_numpy(self.step.written_grads()).view(-1, self.dim)
        self._register()
        marks = torch.stack([self._bad[0], *self._checks])
        self._marks = self.copies.pinned(len(marks), dtype=torch.float32)
        self._copied = self.copies.to_host((grads[: len(host)], host), (marks, self._marks))

    def finish_copy(self) -> _native.StepRows:
        if self._copied is not None:
            self._copied.synchronize()
        bad, *differences = self._marks.tolist()
        if any(differences):
            raise errors.BadInput(
                "the ids of a lookup were not those of the batch: in earlier batches, the tensor that the loop moved "
                "to the GPU was equal to one of the batch, and now it differs. Compute ids before they are moved to "
                "the GPU; nothing of this step was applied"
            )
        if bad:
            self.step.suspect()  # the push then reports the row with the bad gradient
        return self.step

    def bring_home(self) -> None:
        """Move the gradients to CPU memory, so that they can be merged with others."""
        if self._grads is not None:
            self.begin_copy()
            self.finish_copy()
            self._grads = None


def _find(
    source: _native.RowSource, plan: _native.StepPlan, calls: Sequence[LookupCall], ids: list[Any], keys: torch.Tensor
) -> _native.StepRows:
    """Find the unique rows, and write the key of each id. `calls` keeps the memory of the ids."""
    step = _native.StepRows(source, plan, ids)
    step.write_keys(keys.data_ptr())
    return step


class ShownGroup:
    """`weight.grad` of one parameter: a copy of its rows' gradients, which is made when the script reads it."""

    __slots__ = ("_group", "_rows", "_version", "made")

    def __init__(self, rows: PulledRows, group: int) -> None:
        self._rows, self._group, self._version = rows, group, 0
        self.made: Any = None

    def springtide_rows(self) -> torch.Tensor:
        if self.made is None:
            plan, group = self._rows.plan, self._group
            made = self._rows.gradients()[self._rows.rows_of(group)]
            self.made = made if plan.dims[group] else made.view(-1)
            self._version = self.made._version
        made_now: torch.Tensor = self.made
        return made_now

    @property
    def changed(self) -> bool:
        return self.made is not None and self.made._version != self._version


class Bags(NamedTuple):
    """How the ids of one feature are divided into bags."""

    bags: int
    per_bag: int
    offsets: torch.Tensor | None
    closed: bool


def _bags(calls: Calls) -> list[Bags]:
    found = []
    for _, call in calls:
        for _, bags, per_bag, offsets, closed, _ in call.bags:
            found.append(Bags(bags, per_bag, call.keep[1] if offsets else None, closed))
    return found


def _id_batch(rows: PulledRows, calls: Calls, keys: torch.Tensor) -> IdBatch:
    features = _bags(calls)
    counts = tuple(count for _, call in calls for _, count, _ in call.ids)
    lengths = {bags.per_bag for bags in features}
    batch = IdBatch(keys, keys, counts, sum(bags.bags for bags in features), max(lengths.pop(), 1))
    if lengths or any(bags.offsets is not None for bags in features):
        # with offsets, this field has the number of all ids, as in a DeviceCall
        batch.bag_of, batch.begin = bags_of_calls(features, counts, rows.device)
    return batch


class PooledPulledRows(torch.autograd.Function):
    """Autograd function for the outputs of calls over one PulledRows. Its first input has no meaning and only makes
    autograd call backward."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        rows: PulledRows,
        calls: Calls,
        after: Callable[[Gathered, list[int]], None],
        *weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        all_keys, values = rows.on_device()
        first = calls[0][0]
        count = sum(len(call.ids) for _, call in calls)
        keys = all_keys[rows.begins[first] : rows.begins[first + count]]
        batch, kernels = _id_batch(rows, calls, keys), kernel_registry.of_device(rows.device.type)
        scale = _scale(calls, weights, rows.device)
        out = kernels.pool(keys, batch, values, scale, mean=rows.kind.mean, read_skipped=rows.kind.reads_padding)
        ctx.set_materialize_grads(False)
        ctx.rows, ctx.calls, ctx.after, ctx.batch, ctx.keys, ctx.scale = rows, calls, after, batch, keys, scale
        ctx.bags = [bag[1] for _, call in calls for bag in call.bags]
        pooled = [out] if len(ctx.bags) == 1 else torch.unsafe_split_with_sizes(out, ctx.bags)
        outs, at = [], 0
        for _, call in calls:
            for number, shape in enumerate(call.shapes):
                parts = [place for place in call.places if place[0] == number]
                together = pooled[at] if len(parts) == 1 else torch.cat(pooled[at : at + len(parts)], 1)
                outs.append(torch.ops.aten._unsafe_view(together, shape))
                at += len(parts)
        return tuple(outs)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        rows: PulledRows = ctx.rows
        batch, keys = ctx.batch, ctx.keys
        by_feature = _feature_gradients(grads, ctx.calls, rows.dim)
        if any(grad is None for grad in by_feature):
            keys = keys.clone()
            begins = itertools.accumulate(batch.counts, initial=0)
            for grad, begin, count in zip(by_feature, begins, batch.counts, strict=False):
                if grad is None:
                    keys[begin : begin + count] |= 1
        bags = bag_gradients(by_feature, ctx.bags, rows.dim)
        if rows.kind.mean:
            bags = averaged(bags, batch, keys, rows.dim)
        to_weights: Sequence[torch.Tensor | None] = [None] * len(ctx.calls)
        if any(ctx.needs_input_grad[4:]):
            given = [call.weights for _, call in ctx.calls]
            found = rows.on_device()[1][keys.long() >> 1]
            to_weights = weight_gradients(given, ctx.needs_input_grad[4:], bags, keys, batch, found)
        groups = _trained_groups(rows.plan, ctx.calls, by_feature)
        if groups:
            for group in groups:
                rows.step.touch(group)
            ordered, order = torch.sort(keys, stable=True)
            out = torch.zeros_like(rows.on_device()[1])
            bad = torch.zeros(1, device=rows.device)
            kernels = kernel_registry.of_device(rows.device.type)
            kernels.reduce(ordered, order, batch, bags, ctx.scale, bad, rows.dim, out)
            rows.add_gradients(out, bad)
            ctx.after(rows, groups)
        return (None, None, None, None, *to_weights)


def _scale(calls: Calls, weights: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor | None:
    if all(given is None for given in weights):
        return None
    parts = []
    for (_, call), given in zip(calls, weights, strict=True):
        count = sum(count for _, count, _ in call.ids)
        parts.append(torch.ones(count, device=device) if given is None else given.detach().reshape(-1).to(device))
    return torch.cat(parts)


def _feature_gradients(grads: Sequence[torch.Tensor | None], calls: Calls, dim: int) -> list[torch.Tensor | None]:
    """Return the gradient of each feature's bags. Features may share an output, side by side."""
    found: list[torch.Tensor | None] = []
    first = 0
    for _, call in calls:
        for out, begin, stride in call.places:
            grad = grads[first + out]
            if grad is not None and stride != dim:
                grad = grad.reshape(-1, stride)[:, begin : begin + dim]
            found.append(grad)
        first += len(call.shapes)
    return found


def _trained_groups(plan: RowPlan, calls: Calls, grads: Sequence[torch.Tensor | None]) -> list[int]:
    features = [first + i for first, call in calls for i in range(len(call.features))]
    touched = {plan.groups[feature] for feature, grad in zip(features, grads, strict=True) if grad is not None}
    with torch._C.DisableTorchFunctionSubclass():
        return [group for group in sorted(touched) if plan.weights[group].requires_grad]
