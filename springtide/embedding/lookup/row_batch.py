"""Pulls the rows of several calls together, and pools their outputs and reduces their gradients in one native call
each.

In: the calls of a step (embedding/lookup/calls.py). Out: output tensors with autograd, and gradients in `weight.grad`
until the push. `PooledColumns` is the fast path for one [batch, tables] id tensor. Next: cpp/step/step_rows.h.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from springtide import _native
from springtide.embedding.lookup.calls import Bag, Ids, LookupCall, LookupFeature
from springtide.embedding.lookup.table_client import TableClient

FLOAT_BYTES = 4
ID_BYTES = 8


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap backward like torch's `once_differentiable`, but with overhead only if second derivatives are requested."""
    refusing = once_differentiable(backward)

    def run(ctx: Any, *grads: Any) -> Any:
        return refusing(ctx, *grads) if torch.is_grad_enabled() else backward(ctx, *grads)

    return run


class RowPlan:
    """Features that a step looks up in every batch, and the parameters that receive their gradients."""

    def __init__(self, features: tuple[LookupFeature, ...], *, wire_order: bool = False) -> None:
        """Create the plan. With `wire_order`, rows stay in the order of messages, to be copied to a GPU."""
        self.features = features
        self.weights: list[torch.nn.Parameter] = []
        self.dims: list[int] = []
        group_of: dict[int, int] = {}
        specs = []
        for feature in features:
            table = feature.table
            group = group_of.setdefault(id(table.weight), len(self.weights))
            if group == len(self.weights):
                self.weights.append(table.weight)
                self.dims.append(table.spec.dim if table.weight.dim() == 2 else 0)
            specs.append(
                _native.FeatureSpec(
                    name=feature.name,
                    table=table.spec.id,
                    dim=table.spec.dim,
                    group=group,
                    rows=table.request.rows,
                    has_padding=feature.padding is not None,
                    padding=feature.padding or 0,
                    pull_padding=feature.pull_padding,
                )
            )
        self.groups = [group_of[id(feature.table.weight)] for feature in features]
        self.tables = [feature.table.spec.id for feature in features]
        self.native = _native.StepPlan(specs, wire_order)


class Gathered:
    """Unique rows of some calls. The rows have arrived or are still on the way."""

    def __init__(self, client: TableClient, plan: RowPlan, calls: Sequence[LookupCall], *, after_step: int = 0) -> None:
        self.plan = plan
        if len(calls) == 1:
            self.step = calls[0].gather(client, plan.native, after_step)
        else:
            self.step = client.gather(plan.native, [ids for call in calls for ids in call.ids], after_step=after_step)
        self.shown: dict[int, torch.Tensor] = {}
        """Gradient views by group, as `show` put them into `weight.grad`."""

    @classmethod
    def merged(cls, client: TableClient, parts: "Sequence[Gathered]") -> "Gathered":
        """Merge the gradients of several backward passes. If several parts have the same key, its gradients are
        summed."""
        features: dict[int, LookupFeature] = {}
        for part in parts:
            part.bring_home()
            for feature, group in zip(part.plan.features, part.plan.groups, strict=True):
                if part.step.touched(group):
                    features.setdefault(feature.table.spec.id, feature)
        both = cls.__new__(cls)
        both.plan = RowPlan(tuple(features.values()))
        group_of = {id(weight): group for group, weight in enumerate(both.plan.weights)}
        maps = [
            [group_of[id(weight)] if part.step.touched(group) else -1 for group, weight in enumerate(part.plan.weights)]
            for part in parts
        ]
        both.step = _native.StepRows(client.source, both.plan.native, [part.step for part in parts], maps)
        both.shown = {}
        for part in parts:
            part.shown = {}
        return both

    def bring_home(self) -> None:
        """Move gradients to CPU memory, if they are on a GPU."""
        return

    def show(self, groups: Sequence[int]) -> None:
        """Set `weight.grad` of the weights of these groups to their gradients, with one row per unique id."""
        grads = torch.from_numpy(self.step.grads())
        if len(self.plan.weights) == 1 and not self.plan.dims[0]:
            self.plan.weights[0].grad = self.shown[0] = grads
            return
        all_grads = grads.split([end - begin for begin, end in itertools.pairwise(self.step.group_begin)])
        for group in groups:
            shape = (-1, self.plan.dims[group]) if self.plan.dims[group] else (-1,)
            self.plan.weights[group].grad = self.shown[group] = all_grads[group].view(shape)

    @property
    def weights(self) -> list[torch.nn.Parameter]:
        return self.plan.weights

    @property
    def shown_weights(self) -> list[torch.nn.Parameter]:
        return [self.plan.weights[group] for group in self.shown]

    def drop(self) -> None:
        """Clear `weight.grad` after a push."""
        for weight in self.shown_weights:
            weight.grad = None

    def settle(self) -> bool:
        """Apply changes that the script made to `weight.grad` since `show`. Return False if no gradient is left to
        push.
        """
        for group, shown in list(self.shown.items()):
            now = self.plan.weights[group].grad
            if now is None:
                self.step.untouch(group)
                del self.shown[group]
            elif now is not shown:
                shown.copy_(now)
        return bool(self.shown)


class Pooled(torch.autograd.Function):
    """Autograd function for the outputs of all calls over one Gathered. Its first input has no meaning and only
    makes autograd call backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        gathered: Gathered,
        calls: Sequence[tuple[int, LookupCall]],
        after: Callable[[Gathered, list[int]], None],
        *weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """Pool all calls. `calls` has each lookup call with the index of its first feature in the plan."""
        outs = tuple(empty_rows(shape, call.features[0].table.gpu) for _, call in calls for shape in call.shapes)
        bags, places = [], []
        first_out = 0
        for first, call in calls:
            for i, (bag, (out, start, stride)) in enumerate(zip(call.bags, call.places, strict=True)):
                bags.append((first + i, *bag))
                places.append((first_out + out, start, stride))
            first_out += len(call.shapes)
        addresses = [out.data_ptr() for out in outs]
        gathered.step.pool(bags, [(addresses[out] + start * FLOAT_BYTES, stride) for out, start, stride in places])
        ctx.set_materialize_grads(False)
        ctx.gathered, ctx.calls, ctx.after, ctx.bags, ctx.places = gathered, calls, after, bags, places
        return tuple(
            out if gpu is None else out.to(gpu, non_blocking=True)
            for out, gpu in zip(
                outs, (call.features[0].table.gpu for _, call in calls for _ in call.shapes), strict=True
            )
        )

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        gathered: Gathered = ctx.gathered
        plan = gathered.plan
        ready = rows_of(grads)
        given = [(0, 0) if grad is None else (grad.data_ptr(), grad.stride(0)) for grad in ready]
        with torch._C.DisableTorchFunctionSubclass():
            trained = [weight.requires_grad for weight in plan.weights]
        to_weights = [
            torch.zeros(call.weights.shape, device="cpu") if call.weights is not None and needed else None
            for (_, call), needed in zip(ctx.calls, ctx.needs_input_grad[4:], strict=True)
        ]
        weight_addresses = [
            0 if weights is None else weights.data_ptr()
            for (_, call), weights in zip(ctx.calls, to_weights, strict=True)
            for _ in call.bags
        ]
        addresses, groups = [], set()
        for bag, (out, start, _), weights in zip(ctx.bags, ctx.places, weight_addresses, strict=True):
            address, stride = given[out]
            group = plan.groups[bag[0]]
            if not address or not (trained[group] or weights):
                addresses.append((0, 0))
                continue
            groups.add(group)
            addresses.append((address + start * FLOAT_BYTES, stride))
        gathered.step.accumulate(ctx.bags, addresses, weight_addresses)
        for group in groups:
            if not trained[group]:
                gathered.step.untouch(group)
        ctx.after(gathered, [group for group in sorted(groups) if trained[group]])
        return (None, None, None, None, *to_weights)


def empty_rows(shape: tuple[int, ...], gpu: torch.device | None) -> torch.Tensor:
    """Return CPU memory for outputs. The memory is pinned if the outputs go to a GPU, so that the copy does not
    block."""
    return torch.empty(shape, device="cpu", pin_memory=gpu is not None and gpu.type == "cuda")


def rows_of(grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return gradients as float32 rows in CPU memory. Gradients on a GPU are copied together, with a single wait."""
    rows = [None if grad is None else as_rows(grad) for grad in grads]
    streams = set()
    for at, grad in enumerate(rows):
        if grad is not None and grad.is_cuda:
            rows[at] = empty_rows(tuple(grad.shape), grad.device).copy_(grad, non_blocking=True)
            streams.add(torch.cuda.current_stream(grad.device))
    for stream in streams:
        stream.synchronize()
    return rows


def as_rows(grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient as float32 rows with any stride between rows."""
    if grad.dtype != torch.float32:
        grad = grad.float()
    if grad.dim() != 2:
        grad = grad.reshape(-1, grad.shape[-1])
    if grad.stride(1) != 1 and grad.shape[1] != 1:
        grad = grad.contiguous()
    return grad


class ColumnsCall(LookupCall):
    """Lookup with one column of ids per feature. The addresses of single features are computed only if the call is
    grouped with other calls."""

    __slots__ = ("dims", "ids_tensor", "pooling")

    def __init__(
        self, features: tuple[LookupFeature, ...], ids: torch.Tensor, pooling: int, dims: tuple[int, ...]
    ) -> None:
        self.features = features
        self.ids_tensor = ids
        self.pooling = pooling
        self.dims = dims
        self.keep = (ids,)
        self.weights = None
        self.shapes = [(ids.shape[0], sum(dims))]

    def gather(self, client: TableClient, plan: _native.StepPlan, after_step: int) -> _native.StepRows:
        rows, columns = self.ids_tensor.stride()
        return client.gather(
            plan, self.ids_tensor.data_ptr(), self.ids_tensor.shape[0], rows, columns, after_step=after_step
        )

    @property
    def ids(self) -> list[Ids]:  # type: ignore[override]
        address, count, (rows, columns) = self.ids_tensor.data_ptr(), self.ids_tensor.shape[0], self.ids_tensor.stride()
        return [(address + i * columns * ID_BYTES, count, rows) for i in range(len(self.dims))]

    @property
    def bags(self) -> list[Bag]:  # type: ignore[override]
        return [(self.pooling, self.ids_tensor.shape[0], 1, 0, False, 0)] * len(self.dims)

    @property
    def places(self) -> list[tuple[int, int, int]]:  # type: ignore[override]
        total = sum(self.dims)
        return [(0, sum(self.dims[:i]), total) for i in range(len(self.dims))]


class PooledColumns(torch.autograd.Function):
    """Autograd function for a ColumnsCall that shares its rows with no other call."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        gathered: Gathered,
        call: ColumnsCall,
        after: Callable[[Gathered, list[int]], None],
    ) -> torch.Tensor:
        batch, total = call.shapes[0]
        gpu = call.features[0].table.gpu
        out = empty_rows((batch, total), gpu)
        gathered.step.pool_columns(batch, out.data_ptr(), total)
        ctx.gathered, ctx.batch, ctx.after = gathered, batch, after
        return out if gpu is None else out.to(gpu, non_blocking=True)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None, None]:
        gathered: Gathered = ctx.gathered
        rows = rows_of([grad])[0]
        assert rows is not None
        gathered.step.accumulate_columns(ctx.batch, rows.data_ptr(), rows.stride(0))
        ctx.after(gathered, [0])
        return None, None, None, None


def fits(gathered: Gathered, call: LookupCall) -> bool:
    """Return True if the call can use the fast path: all rows belong to this call and to one trained parameter."""
    return (
        isinstance(call, ColumnsCall)
        and gathered.plan.features == call.features
        and len(gathered.plan.weights) == 1
        and gathered.plan.weights[0].requires_grad
    )
