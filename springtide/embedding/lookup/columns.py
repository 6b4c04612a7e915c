"""Fast path of a lookup: one [batch, tables] id tensor in, one [batch, sum of dims] tensor out.

In: the ids of st.EmbeddingBags, one id per bag. Out: the rows of all tables side by side. Each direction takes one
native call, and the number of its arguments does not grow with the number of tables. All other lookups use
embedding/lookup/calls.py and embedding/lookup/row_batch.py.
"""

from collections.abc import Callable
from typing import Any

import torch

from springtide import _native
from springtide.embedding.lookup.calls import Bag, Ids, LookupCall, LookupFeature
from springtide.embedding.lookup.row_batch import Gathered, as_rows, differentiable_once
from springtide.embedding.lookup.table_client import TableClient

ID_BYTES = 8


class ColumnsCall(LookupCall):
    """Lookup with one column of ids per feature. It builds lists of addresses only when it is grouped with other
    calls.
    """

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
        return client.gather_columns(
            plan, (self.ids_tensor.data_ptr(), self.ids_tensor.shape[0], rows, columns), after_step=after_step
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
        out = torch.empty(batch, total)
        gathered.step.pool_columns(batch, out.data_ptr(), total)
        ctx.gathered, ctx.batch, ctx.after = gathered, batch, after
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None, None]:
        gathered: Gathered = ctx.gathered
        grad = as_rows(grad)
        gathered.step.accumulate_columns(ctx.batch, grad.data_ptr(), grad.stride(0))
        ctx.after(gathered, [0])
        return None, None, None, None


def fits(gathered: Gathered, call: LookupCall) -> bool:
    """Return True if the call can use the fast path: it owns all rows, under one trained parameter."""
    return (
        isinstance(call, ColumnsCall)
        and gathered.plan.features == call.features
        and len(gathered.plan.weights) == 1
        and gathered.plan.weights[0].requires_grad
    )
