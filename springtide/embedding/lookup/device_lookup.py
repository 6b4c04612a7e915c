"""Look up rows in device memory: all calls of a step that share an arena in a few kernels, without waiting.

In: DeviceCalls (embedding/lookup/calls.py). Out: outputs with autograd, and DeviceGradients. Next:
embedding/device/kernels.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from springtide.embedding.device import kernel_registry
from springtide.embedding.device.kernels import BagGradients, IdBatch
from springtide.embedding.lookup.calls import DeviceCall
from springtide.embedding.lookup.device_tables import MOST_LAYOUTS, DeviceTables
from springtide.embedding.lookup.row_batch import as_rows, differentiable_once
from springtide.embedding.lookup.row_gradients import DeviceGradients, reduced, segments_of
from springtide.embedding.lookup.tables import ServedTable, TablePlace

Outputs = tuple[torch.Tensor, ...]
After = Callable[[DeviceGradients], None]


def look_up(tables: DeviceTables, calls: Sequence[DeviceCall], anchor: torch.Tensor, after: After) -> Outputs:
    """Return the outputs of each call. Calls of one kind share their kernels."""
    if not torch.is_grad_enabled():  # no push will check the ids
        tables.poll()
    groups: dict[Any, list[int]] = {}
    for number, call in enumerate(calls):
        groups.setdefault(_kind(call), []).append(number)
    outs: list[torch.Tensor] = [anchor] * len(calls)
    for members in groups.values():
        group = [calls[number] for number in members]
        with torch._C.DisableTorchFunctionSubclass():
            trained = any(call.features[0].table.weight.requires_grad for call in group)
        made = PooledOnDevice.apply(  # type: ignore[no-untyped-call]
            anchor if trained else anchor.detach(), tables, group, after, *(call.weights for call in group)
        )
        for number, out in zip(members, made, strict=True):
            gpu = calls[number].features[0].table.gpu
            home = torch.device("cpu") if gpu is None else gpu
            outs[number] = out if out.device == home else out.to(home)
    return tuple(outs)


def _kind(call: DeviceCall) -> tuple[Any, ...]:
    feature = call.features[0]
    return id(place_of(feature.table).arena), call.mean, feature.pull_padding and feature.padding is not None


def place_of(table: ServedTable) -> TablePlace:
    assert table.place is not None
    return table.place


def id_batch(tables: DeviceTables, calls: Sequence[DeviceCall], device: torch.device) -> IdBatch:
    """Bring the ids of all calls to the device, as one tensor if they are views of one."""
    counts = tuple(call.count for call in calls)
    first, total = calls[0].ids, sum(counts)
    lo = min(call.offset for call in calls)
    reaches = [call.offset + _reach(call) for call in calls]
    together = all(call.ids is first for call in calls)
    if not together:
        together = len({call.ids.untyped_storage().data_ptr() for call in calls}) == 1
        together = together and len({call.ids.dtype for call in calls}) == 1
    if together and max(reaches) - lo <= 2 * total:
        ids = first.as_strided((max(reaches) - lo,), (1,), lo)
        places = [(call.offset - lo, *_steps(call)) for call in calls]
    else:
        parts = [_strided(call).reshape(-1).to(device, torch.int64, non_blocking=True) for call in calls]
        ids, places, begin = torch.cat(parts), [], 0
        for call, count in zip(calls, counts, strict=True):
            places.append((begin, call.per_bag if call.offsets is None else 1, call.per_bag, 1))
            begin += count
    if ids.device != device:
        pinned = ids if device.type == "cpu" or ids.is_pinned() else ids.pin_memory()
        ids = pinned.to(device, non_blocking=True)
    per_bag = {call.per_bag for call in calls}
    jagged = len(per_bag) > 1 or any(call.offsets is not None for call in calls)
    batch = IdBatch(ids, _described(tables, calls, counts, places, device), counts, 0, 0)
    batch.bags, batch.per_bag = sum(call.bags for call in calls), 1 if jagged else per_bag.pop()
    if jagged:
        batch.bag_of, batch.begin = _bags(calls, counts, device)
    return batch


def _steps(call: DeviceCall) -> tuple[int, int, int]:
    """Return the ids per bag, and the distances between bags and between ids, as the keys kernel counts them."""
    return (1, call.strides[1], 1) if call.offsets is not None else (call.per_bag, *call.strides)


def _strided(call: DeviceCall) -> torch.Tensor:
    shape = (1 if call.offsets is not None else call.bags, call.per_bag)
    return call.ids.as_strided(shape, call.strides, call.offset)


def _reach(call: DeviceCall) -> int:
    bags = 1 if call.offsets is not None else call.bags
    return max(0, (bags - 1) * call.strides[0] + (call.per_bag - 1) * call.strides[1] + 1) if call.count else 0


def _described(
    tables: DeviceTables,
    calls: Sequence[DeviceCall],
    counts: Sequence[int],
    places: Sequence[tuple[int, int, int, int]],
    device: torch.device,
) -> torch.Tensor:
    key = (device, *places, *counts, *(id(call.features[0]) for call in calls))
    made = tables.layouts.get(key)
    if made is None:
        rows, begin = [], 0
        for call, count, (offset, per_bag, bag_stride, id_stride) in zip(calls, counts, places, strict=True):
            feature = call.features[0]
            first, padding = place_of(feature.table).first, -1 if feature.padding is None else feature.padding
            size = feature.table.request.rows
            number = feature.table.spec.id
            rows.append([offset, count, max(per_bag, 1), bag_stride, id_stride, first, size, padding, begin, number])
            begin += count
        made = torch.tensor(rows, dtype=torch.int64, device="cpu")
        made = made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)
        if len(tables.layouts) >= MOST_LAYOUTS:
            tables.layouts.clear()
        tables.layouts[key] = made
    return made


def _bags(
    calls: Sequence[DeviceCall], counts: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bag of each id, -1 for none, and the first id of each bag."""
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
    """Autograd function for the outputs of calls with one arena. Its first input makes autograd call backward."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        tables: DeviceTables,
        calls: Sequence[DeviceCall],
        after: After,
        *weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        feature = calls[0].features[0]
        arena = place_of(feature.table).arena
        chosen, flags = kernel_registry.of_device(arena.device.type), tables.flags(arena.device)
        batch = id_batch(tables, calls, arena.device)
        keys = chosen.keys(batch, flags.invalid)
        scale = _scale(calls, arena.device)
        skipped = feature.pull_padding and feature.padding is not None
        out = chosen.pool(keys, batch, arena.weights, scale, mean=calls[0].mean, read_skipped=skipped)
        ctx.set_materialize_grads(False)
        ctx.arena, ctx.calls, ctx.after, ctx.batch, ctx.keys, ctx.scale = arena, calls, after, batch, keys, scale
        outs = [out] if len(calls) == 1 else torch.unsafe_split_with_sizes(out, [call.bags for call in calls])
        return tuple(
            rows if call.shapes[0] == rows.shape else torch.ops.aten._unsafe_view(rows, call.shapes[0])
            for call, rows in zip(calls, outs, strict=True)
        )

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        arena, calls, batch, keys, scale = ctx.arena, ctx.calls, ctx.batch, ctx.keys, ctx.scale
        if any(grad is None for grad in grads):
            keys = keys.clone()
        counts: dict[ServedTable, int] = {}
        begin, touched = 0, set()
        for call, grad in zip(calls, grads, strict=True):
            table = call.features[0].table
            counts[table] = counts.get(table, 0) + call.count
            if grad is None:
                keys[begin : begin + call.count] |= 1
            else:
                touched.add(id(table))
            begin += call.count
        rows = _bag_gradients(grads, calls, arena.dim)
        if calls[0].mean:
            rows = _averaged(rows, batch, keys, arena.dim)
        to_weights = _weight_gradients(ctx, rows, keys) if any(ctx.needs_input_grad[4:]) else [None] * len(calls)
        with torch._C.DisableTorchFunctionSubclass():
            touched -= {id(table) for table in counts if not table.weight.requires_grad}
        if touched:
            chosen = [segment for segment in segments_of(counts) if id(segment.table) in touched]
            ctx.after(reduced(arena, chosen, keys, batch, rows, scale))
        return (None, None, None, None, *to_weights)


def _scale(calls: Sequence[DeviceCall], device: torch.device) -> torch.Tensor | None:
    if all(call.weights is None for call in calls):
        return None
    parts = [torch.ones(call.count, device=device) if call.weights is None else call.weights for call in calls]
    return torch.cat([part.detach().reshape(-1).to(device, torch.float32, non_blocking=True) for part in parts])


def _bag_gradients(grads: Sequence[torch.Tensor | None], calls: Sequence[DeviceCall], dim: int) -> BagGradients:
    """Return the gradients of all bags, without a copy if they are evenly spaced in one storage."""
    given = [None if grad is None else as_rows(grad) for grad in grads]
    first = given[0]
    if first is not None and len(given) == 1:
        return BagGradients(first, max(len(first), 1), 0, first.stride(0))
    if first is not None and all(_like(first, grad) for grad in given):
        at = [grad.storage_offset() for grad in given if grad is not None]
        if all(offset - at[0] == i * (at[1] - at[0]) for i, offset in enumerate(at)):
            return BagGradients(first, max(len(first), 1), int(at[1] - at[0]), first.stride(0))
    device = next(grad.device for grad in given if grad is not None)
    parts = [
        torch.zeros(call.bags, dim, device=device) if grad is None else grad
        for call, grad in zip(calls, given, strict=True)
    ]
    together = torch.cat(parts)
    return BagGradients(together, max(len(together), 1), 0, dim)


def _like(first: torch.Tensor, grad: torch.Tensor | None) -> bool:
    return (
        grad is not None
        and grad.shape == first.shape
        and grad.stride() == first.stride()
        and grad.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    )


def _rows(grads: BagGradients, bags: int, dim: int) -> torch.Tensor:
    """Return the gradients of all bags as a matrix."""
    shape = (bags // grads.rows if grads.rows else 0, grads.rows, dim)
    return grads.values.as_strided(shape, (grads.outer, grads.inner, 1), grads.values.storage_offset()).reshape(-1, dim)


def _averaged(grads: BagGradients, batch: IdBatch, keys: torch.Tensor, dim: int) -> BagGradients:
    used = (keys & 1 == 0).float()
    if batch.bag_of is None:
        count = used.view(batch.bags, batch.per_bag).sum(1)
    else:
        count = torch.zeros(batch.bags, device=keys.device).index_add_(0, batch.bag_of.clamp(min=0), used)
    rows = _rows(grads, batch.bags, dim) / count.clamp_(min=1)[:, None]
    return BagGradients(rows, max(batch.bags, 1), 0, dim)


def _weight_gradients(ctx: Any, grads: BagGradients, keys: torch.Tensor) -> list[torch.Tensor | None]:
    """Return the gradients of the per-sample weights of each call."""
    batch: IdBatch = ctx.batch
    at = torch.arange(batch.total, device=keys.device) // batch.per_bag if batch.bag_of is None else batch.bag_of
    rows = ctx.arena.weights[keys.long() >> 1].float() * _rows(grads, batch.bags, ctx.arena.dim)[at.clamp(min=0)]
    sums = torch.where(keys & 1 == 0, rows.sum(1), 0.0).split(batch.counts)
    return [
        own.view(call.weights.shape).to(call.weights.device, call.weights.dtype) if needed else None
        for call, own, needed in zip(ctx.calls, sums, ctx.needs_input_grad[4:], strict=True)
    ]
