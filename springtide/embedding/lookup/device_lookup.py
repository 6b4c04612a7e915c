"""Looks up rows in device memory. All calls of a step that share an arena use a few common kernels, and nothing
waits for the device.

In: DeviceCalls (embedding/lookup/calls.py). Out: outputs with autograd, and DeviceGradients. Next:
embedding/device/kernels.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from springtide.embedding.device import kernel_registry
from springtide.embedding.device.arena import Arena
from springtide.embedding.device.kernels import BagGradients, IdBatch
from springtide.embedding.lookup.calls import DeviceCall
from springtide.embedding.lookup.device_tables import MOST_LAYOUTS, DeviceTables
from springtide.embedding.lookup.row_batch import as_rows, differentiable_once
from springtide.embedding.lookup.row_gradients import DeviceGradients, Segment, reduced, segments_of
from springtide.embedding.lookup.tables import ServedTable, place_of

Outputs = tuple[torch.Tensor, ...]


class Bagged(Protocol):
    """Division of ids into bags, as in a DeviceCall."""

    @property
    def bags(self) -> int: ...
    @property
    def per_bag(self) -> int: ...
    @property
    def offsets(self) -> torch.Tensor | None: ...
    @property
    def closed(self) -> bool: ...


Kind = tuple[Arena, bool, bool]
"""Arena, whether the kernel takes the mean, and whether it reads the rows of skipped ids."""
After = Callable[[DeviceGradients], None]


@dataclass(slots=True, eq=False)
class LookupLayout:
    """Properties of lookup calls that share their kernels, equal in all batches of one layout."""

    members: tuple[int, ...]
    """Positions of these calls among all calls of the step."""
    arena: Arena
    counts: tuple[int, ...]
    bags: tuple[int, ...]
    per_bag: int
    """Number of ids in each bag; 0 if the bags differ."""
    first: int
    """Offset of the first id to read, counted from the first id of the first call."""
    span: int
    """Number of ids to read at once; 0 if the ids are not views of one tensor."""
    features: torch.Tensor
    segments: tuple[Segment, ...]
    mean: bool
    read_skipped: bool
    plain: bool
    """True if every output has one row for each bag."""


def look_up(tables: DeviceTables, calls: Sequence[DeviceCall], anchor: torch.Tensor, after: After) -> Outputs:
    """Return the outputs of each call. Calls of one kind share kernels."""
    if not torch.is_grad_enabled():  # check the ids now, because no push will check them
        tables.poll()
    start, ids = calls[0].offset, calls[0].ids
    together = all(call.ids is ids for call in calls) or _one_storage(calls)
    key = (
        together,
        *((id(c.features[0]), c.offset - start, c.bags, c.per_bag, c.strides, c.offsets is None) for c in calls),
    )
    groups = tables.layouts.get(key)
    if groups is None:
        if len(tables.layouts) >= MOST_LAYOUTS:
            tables.layouts.clear()
        groups = tables.layouts[key] = _layouts(calls, together=together)
    return _pooled(tables, groups, calls, start, anchor, after)


def _pooled(
    tables: DeviceTables,
    groups: Sequence[LookupLayout],
    calls: Sequence[DeviceCall],
    start: int,
    anchor: torch.Tensor,
    after: After,
) -> Outputs:
    """Return the outputs of all calls. The ids of the first call begin at position `start` of the storage."""
    outs: list[torch.Tensor] = [anchor] * len(calls)
    weighted = any(call.weights is not None for call in calls)
    for layout in groups:
        members = [calls[number] for number in layout.members]
        with torch._C.DisableTorchFunctionSubclass():
            trained = any(segment.table.weight.requires_grad for segment in layout.segments)
        weights = [call.weights for call in members] if weighted else ()
        made = PooledOnDevice.apply(  # type: ignore[no-untyped-call]
            anchor if trained else anchor.detach(), tables, layout, members, start, after, *weights
        )
        for number, call, out in zip(layout.members, members, made, strict=True):
            gpu = call.features[0].table.gpu
            outs[number] = out if gpu == layout.arena.device else out.to("cpu" if gpu is None else gpu)
    return tuple(outs)


class PreparedCalls:
    """Lookup calls whose ids are in one tensor that the script moves to the device. The calls are prepared once for all
    batches of one layout.
    """

    def __init__(self, whole: torch.Tensor, found: Sequence[tuple[int, torch.Tensor, DeviceCall]]) -> None:
        """Prepare calls, given with the identities of their modules and their ids."""
        self.calls = [call.moved(whole, call.offset) for _, _, call in found]
        self.start = self.calls[0].offset - int(whole.storage_offset())
        base = whole.data_ptr()
        self.at = {(module, ids.data_ptr() - base): i for i, (module, ids, _) in enumerate(found)}
        self.views = [(ids.shape, ids.stride()) for _, ids, _ in found]
        self.groups = _layouts(self.calls, together=True)

    def look_up(
        self, whole: torch.Tensor, tables: DeviceTables, anchor: torch.Tensor, after: After
    ) -> "PreparedOutputs":
        for call in self.calls:
            call.ids = whole
        outs = _pooled(tables, self.groups, self.calls, int(whole.storage_offset()) + self.start, anchor, after)
        return PreparedOutputs(self, whole, outs)


class PreparedOutputs:
    """Outputs of prepared calls in one step. Each output is returned only once."""

    def __init__(self, prepared: PreparedCalls, whole: torch.Tensor, outs: Outputs) -> None:
        self.prepared = prepared
        self._whole, self._base, self._version = whole, whole.data_ptr(), whole._version
        self._outs: list[torch.Tensor | None] = list(outs)

    def take(self, module: int, ids: Any) -> torch.Tensor | None:
        """Return the output of a module's call. Return None if the output was not prepared, or if the ids have
        changed."""
        at = self.prepared.at.get((module, ids.data_ptr() - self._base))
        if at is None or (ids.shape, ids.stride()) != self.prepared.views[at] or ids._version != self._version:
            return None
        out, self._outs[at] = self._outs[at], None
        return out

    @property
    def unused(self) -> bool:
        return any(out is not None for out in self._outs)


def _one_storage(calls: Sequence[DeviceCall]) -> bool:
    kinds = {(call.ids.untyped_storage().data_ptr(), call.ids.dtype) for call in calls}
    return len(kinds) == 1


def _layouts(calls: Sequence[DeviceCall], *, together: bool) -> list[LookupLayout]:
    """Group calls that use the same arena and the same kernels, and describe each group."""
    groups: dict[Kind, list[int]] = {}
    for number, call in enumerate(calls):
        feature = call.features[0]
        skipped = feature.pull_padding and feature.padding is not None
        groups.setdefault((place_of(feature.table).arena, call.mean, skipped), []).append(number)
    start = calls[0].offset
    return [
        _layout([calls[i] for i in members], tuple(members), kind, start if together else None)
        for kind, members in groups.items()
    ]


def _layout(
    calls: Sequence[DeviceCall],
    members: tuple[int, ...],
    kind: Kind,
    start: int | None,
) -> LookupLayout:
    arena, mean, read_skipped = kind
    counts = tuple(call.count for call in calls)
    lowest, total = min(call.offset for call in calls), sum(counts)
    span = max(call.offset + _reach(call) for call in calls) - lowest
    if start is None or span > 2 * total:
        span = 0
    rows, begin, by_table = [], 0, dict[ServedTable, int]()
    for call, count in zip(calls, counts, strict=True):
        feature, table = call.features[0], call.features[0].table
        offset, steps = (call.offset - lowest, _steps(call)) if span else (begin, _packed(call))
        padding = -1 if feature.padding is None else feature.padding
        known = (place_of(table).first, table.request.rows, padding, begin, table.spec.id)
        rows.append([offset, count, *steps, *known])
        by_table[table] = by_table.get(table, 0) + count
        begin += count
    features = torch.tensor(rows, dtype=torch.int64, device="cpu")
    if arena.device.type == "cuda":
        features = features.pin_memory().to(arena.device, non_blocking=True)
    per_bag = {call.per_bag for call in calls}
    jagged = len(per_bag) > 1 or any(call.offsets is not None for call in calls)
    return LookupLayout(
        members=members,
        arena=arena,
        counts=counts,
        bags=tuple(call.bags for call in calls),
        per_bag=0 if jagged else per_bag.pop(),
        first=lowest - (start or 0),
        span=span,
        features=features,
        segments=tuple(segments_of(by_table)),
        mean=mean,
        read_skipped=read_skipped,
        plain=all(call.shapes[0] == (call.bags, arena.dim) for call in calls),
    )


def id_batch(layout: LookupLayout, calls: Sequence[DeviceCall], start: int) -> IdBatch:
    """Bring the ids of all calls to the device, as one tensor."""
    device = layout.arena.device
    if layout.span:
        ids = calls[0].ids.as_strided((layout.span,), (1,), start)
    else:
        parts = [_strided(call).reshape(-1).to(device, torch.int64, non_blocking=True) for call in calls]
        ids = torch.cat(parts)
    if ids.device != device:
        pinned = ids if device.type == "cpu" or ids.is_pinned() else ids.pin_memory()
        ids = pinned.to(device, non_blocking=True)
    batch = IdBatch(ids, layout.features, layout.counts, sum(layout.bags), layout.per_bag or 1)
    if not layout.per_bag:
        batch.bag_of, batch.begin = bags_of_calls(calls, layout.counts, device)
    return batch


def _packed(call: DeviceCall) -> tuple[int, int, int]:
    """Return the same steps as `_steps`, for ids that were copied one after another."""
    return (1 if call.offsets is not None else max(call.per_bag, 1), call.per_bag, 1)


def _steps(call: DeviceCall) -> tuple[int, int, int]:
    """Return the number of ids per bag, the distance between bags, and the distance between ids, in the units of the
    keys kernel."""
    return (1, call.strides[1], 1) if call.offsets is not None else (max(call.per_bag, 1), *call.strides)


def _strided(call: DeviceCall) -> torch.Tensor:
    shape = (1 if call.offsets is not None else call.bags, call.per_bag)
    return call.ids.as_strided(shape, call.strides, call.offset)


def _reach(call: DeviceCall) -> int:
    bags = 1 if call.offsets is not None else call.bags
    return max(0, (bags - 1) * call.strides[0] + (call.per_bag - 1) * call.strides[1] + 1) if call.count else 0


def bags_of_calls(
    calls: Sequence[Bagged], counts: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bag of each id (-1 for none), and the position of the first id of each bag."""
    bag_of, begins, bag, first = [], [], 0, 0
    for call, count in zip(calls, counts, strict=True):
        at = torch.arange(count, device=device)
        if call.offsets is None:
            begin, own = torch.arange(call.bags, device=device) * call.per_bag, at // max(call.per_bag, 1)
        else:
            given = call.offsets if call.offsets.is_cuda or device.type == "cpu" else call.offsets.pin_memory()
            offsets = given.to(device, non_blocking=True).clamp(0, count)
            begin = offsets[: call.bags]
            own = torch.searchsorted(begin, at, right=True) - 1
            if call.closed:
                own = torch.where(at < offsets[-1], own, -1)
        bag_of.append(torch.where(own < 0, own, own + bag))
        begins.append(begin + first)
        bag, first = bag + call.bags, first + count
    return torch.cat(bag_of), torch.cat([*begins, torch.full((1,), first, device=device)])


class PooledOnDevice(torch.autograd.Function):
    """Autograd function for the outputs of calls with one arena. Its first input has no meaning and only makes autograd
    call backward."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        tables: DeviceTables,
        layout: LookupLayout,
        calls: Sequence[DeviceCall],
        start: int,
        after: After,
        *weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        arena = layout.arena
        chosen, flags = kernel_registry.of_device(arena.device.type), tables.flags(arena.device)
        batch = id_batch(layout, calls, start + layout.first)
        keys = chosen.keys(batch, flags.invalid)
        scale = _scale(calls, arena.device) if weights else None
        # fetch rows of CPU memory in the order of their places, which is twice as fast; without such rows, backward
        # sorts
        ctx.ordered = None if arena.backing is None else torch.sort(keys, stable=True)
        read, fetched = (keys, None) if ctx.ordered is None else arena.fetch(keys, ctx.ordered.values)
        how = {"mean": layout.mean, "read_skipped": layout.read_skipped}
        out = chosen.pool(read, batch, arena.weights, scale, fetched=fetched, **how)
        ctx.fetched = fetched, arena.version
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.calls, ctx.after, ctx.batch, ctx.keys, ctx.scale = layout, calls, after, batch, keys, scale
        outs = [out] if len(calls) == 1 else torch.unsafe_split_with_sizes(out, list(layout.bags))
        if layout.plain:
            return tuple(outs)
        return tuple(torch.ops.aten._unsafe_view(rows, call.shapes[0]) for call, rows in zip(calls, outs, strict=True))

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        layout, batch, keys, scale = ctx.layout, ctx.batch, ctx.keys, ctx.scale
        arena, segments = layout.arena, layout.segments
        if any(grad is None for grad in grads):
            keys, segments = _without(layout, ctx.calls, grads, keys)
        rows = bag_gradients(grads, layout.bags, arena.dim)
        if layout.mean:
            rows = averaged(rows, batch, keys, arena.dim)
        to_weights: Sequence[torch.Tensor | None] = ()
        if any(ctx.needs_input_grad[6:]):
            given = [call.weights for call in ctx.calls]
            to_weights = weight_gradients(given, ctx.needs_input_grad[6:], rows, keys, batch, arena.rows_of(keys))
        with torch._C.DisableTorchFunctionSubclass():
            segments = [segment for segment in segments if segment.table.weight.requires_grad]
        if segments:
            made = reduced(arena, segments, keys, batch, rows, scale, ctx.ordered if keys is ctx.keys else None)
            if keys is ctx.keys:
                made.keep_fetched(*ctx.fetched)
            ctx.after(made)
        return (None, None, None, None, None, None, *(to_weights or [None] * (len(ctx.needs_input_grad) - 6)))


def _without(
    layout: LookupLayout, calls: Sequence[DeviceCall], grads: Sequence[torch.Tensor | None], keys: torch.Tensor
) -> tuple[torch.Tensor, list[Segment]]:
    """Mark the ids of outputs without a gradient, so that their rows are not trained."""
    keys, begin, touched = keys.clone(), 0, set()
    for call, grad, count in zip(calls, grads, layout.counts, strict=True):
        if grad is None:
            keys[begin : begin + count] |= 1
        else:
            touched.add(id(call.features[0].table))
        begin += count
    return keys, [segment for segment in layout.segments if id(segment.table) in touched]


def _scale(calls: Sequence[DeviceCall], device: torch.device) -> torch.Tensor | None:
    if all(call.weights is None for call in calls):
        return None
    parts = [torch.ones(call.count, device=device) if call.weights is None else call.weights for call in calls]
    return torch.cat([part.detach().reshape(-1).to(device, torch.float32, non_blocking=True) for part in parts])


def bag_gradients(grads: Sequence[torch.Tensor | None], bags: Sequence[int], dim: int) -> BagGradients:
    """Return the gradients of all bags, without a copy if they are evenly spaced in one storage."""
    given = _matrices(grads)
    present = [grad for grad in given if grad is not None]
    first, last = present[0], present[-1]
    if len(given) == 1:
        return BagGradients(first, max(len(first), 1), 0, first.stride(0))
    if len(present) == len(given) and first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr():
        step, begin = present[1].data_ptr() - first.data_ptr(), first.data_ptr()
        inner, count = first.stride(0), bags[0]
        if all(
            grad.data_ptr() - begin == i * step and bags[i] == count and grad.stride(0) == inner
            for i, grad in enumerate(present)
        ):
            return BagGradients(first, max(len(first), 1), step // first.itemsize, first.stride(0))
    parts = [
        torch.zeros(count, dim, device=first.device) if grad is None else grad
        for count, grad in zip(bags, given, strict=True)
    ]
    together = torch.cat(parts)
    return BagGradients(together, max(len(together), 1), 0, dim)


def _matrices(grads: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """Return gradients as float32 rows. Usually all gradients are float32 rows with the same stride, so a comparison
    with the first one suffices.
    """
    first = grads[0]
    if first is not None and first.dim() == 2 and first.stride(1) == 1 and first.dtype == torch.float32:
        stride, kind = first.stride(), first.dtype
        if all(grad is not None and grad.stride() == stride and grad.dtype == kind for grad in grads):
            return grads
    return [None if grad is None else as_rows(grad) for grad in grads]


def _rows(grads: BagGradients, bags: int, dim: int) -> torch.Tensor:
    """Return the gradients of all bags as a matrix."""
    shape = (bags // grads.rows if grads.rows else 0, grads.rows, dim)
    return grads.values.as_strided(shape, (grads.outer, grads.inner, 1), grads.values.storage_offset()).reshape(-1, dim)


def averaged(grads: BagGradients, batch: IdBatch, keys: torch.Tensor, dim: int) -> BagGradients:
    used = (keys & 1 == 0).float()
    if batch.bag_of is None:
        count = used.view(batch.bags, batch.per_bag).sum(1)
    else:
        count = torch.zeros(batch.bags, device=keys.device).index_add_(0, batch.bag_of.clamp(min=0), used)
    rows = _rows(grads, batch.bags, dim) / count.clamp_(min=1)[:, None]
    return BagGradients(rows, max(batch.bags, 1), 0, dim)


def weight_gradients(
    given: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
    grads: BagGradients,
    keys: torch.Tensor,
    batch: IdBatch,
    rows: torch.Tensor,
) -> list[torch.Tensor | None]:
    """Return the gradients of per-sample weights, by call, if they are needed. `rows` are the rows of `keys`."""
    at = torch.arange(batch.total, device=keys.device) // batch.per_bag if batch.bag_of is None else batch.bag_of
    products = rows * _rows(grads, batch.bags, rows.shape[1])[at.clamp(min=0)]
    sums = torch.where(keys & 1 == 0, products.sum(1), 0.0).split(batch.counts)
    return [
        None if weights is None or not wanted else own.view(weights.shape).to(weights.device, weights.dtype)
        for weights, own, wanted in zip(given, sums, needed, strict=True)
    ]
