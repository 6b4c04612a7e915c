"""Dense parameters on servers: split into chunks, pushed with the tables' gradients, pulled a step later.

In: the dense parameters of each optimizer group. Out: one part of the step's push, and new values in the parameters.
Next: step.py. In bsp mode and without a cluster, the user's own optimizer updates dense parameters instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide import errors
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.modules import optimizers
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step.finite import check_finite
from springtide.worker.step.hyperparams import TableRates

CHUNK = 1024  # floats per row (4 KiB): large enough to stream, small enough to spread a layer over servers


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseGroup:
    """Dense parameters of one optimizer group, with their names in the model."""

    optimizer: torch.optim.Optimizer
    index: int
    members: tuple[tuple[str, nn.Parameter], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSlot:
    """Location of one parameter: `chunks` rows of a table, from key `first` on. No other parameter shares its last
    chunk.
    """

    name: str
    param: torch.Tensor
    table: int
    first: int
    chunks: int
    optimizer: torch.optim.Optimizer | None = None


def declare(client: TableClient, groups: Sequence[DenseGroup], rates: TableRates) -> list[DenseSlot]:
    """Declare one table per group, trained by the kernel of its optimizer. Each parameter gets separate chunks."""
    held: list[DenseSlot] = []
    refuse_shared(groups, rates.optimizers)
    for number, group in enumerate(groups):
        kernel = optimizers.spec_of(group.optimizer, group.optimizer.param_groups[group.index])
        table = next_id(client)
        client.declare([TableSpec(id=table, name=f"dense:{number}", dim=CHUNK, optim=kernel)])
        rates.follow_dense(group.optimizer, group.index, table)
        first = 0
        for name, param in group.members:
            check_dtype(name, param)
            chunks = max(1, -(-param.numel() // CHUNK))
            held.append(
                DenseSlot(name=name, param=param, table=table, first=first, chunks=chunks, optimizer=group.optimizer)
            )
            first += chunks
    return held


def refuse_shared(groups: Sequence[DenseGroup], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    names = {id(param): name for group in groups for name, param in group.members}
    holders: dict[int, torch.optim.Optimizer] = {}
    for optimizer in optimizers:
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if holders.setdefault(id(param), optimizer) is not optimizer and id(param) in names:
                raise errors.BadInput(
                    f"parameter {names[id(param)]!r} is in two optimizers, but on servers it has one: take it out of "
                    'one of them, or use sync="bsp"'
                )


def next_id(client: TableClient) -> int:
    return max((spec.id for spec in client.specs), default=-1) + 1


def check_dtype(name: str, param: torch.Tensor) -> None:
    if param.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise errors.BadInput(
            f"parameter {name!r} is {param.dtype}; servers keep dense parameters as float32, so wanted float32, "
            'bfloat16 or float16. Convert the model, or use sync="bsp", which keeps dense parameters in the workers'
        )


class DenseChunks:
    """Rows of some parameters as one flat buffer for values and one for gradients."""

    def __init__(self, client: TableClient, held: Sequence[DenseSlot]) -> None:
        tables = np.concatenate([np.full(one.chunks, one.table, dtype=np.uint16) for one in held])
        keys = np.concatenate([np.arange(one.first, one.first + one.chunks, dtype=np.int64) for one in held])
        self.rows = client.dense(tables, keys, CHUNK)
        self.params = [one.param for one in held]
        self.values = self._views(torch.from_numpy(self.rows.rows()), held)
        self.named = [(f"parameter {one.name!r}", one.param) for one in held]
        self.flat_grads = torch.from_numpy(self.rows.grads())
        self.grads = self._views(self.flat_grads, held)

    @staticmethod
    def _views(flat: torch.Tensor, held: Sequence[DenseSlot]) -> list[torch.Tensor]:
        begin, views = 0, []
        for one in held:
            views.append(flat[begin : begin + one.param.numel()].view(one.param.shape))
            begin += one.chunks * CHUNK
        return views

    def take_values(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.values, [param.detach() for param in self.params])

    def give_values(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.values)
        self.rows.hold_basis()

    def take_grads(self, grads: list[torch.Tensor]) -> None:
        """Copy gradients into the push buffer; refuse gradients that are not finite."""
        torch._foreach_copy_(self.grads, grads)
        if not math.isfinite(float(self.flat_grads.sum())):
            check_finite(self.named)


class ServedDense:
    """Dense parameters of an async job."""

    def __init__(
        self,
        client: TableClient,
        held: Sequence[DenseSlot],
        *,
        frozen: Sequence[tuple[str, nn.Parameter]],
        bounded: bool,
        still: "FrozenDense",
    ) -> None:
        """Create the parameters. With `bounded`, the step decides when values are read."""
        self._client = client
        self._bounded = bounded
        self.held = list(held)
        self.still = still
        self._frozen = list(frozen)
        self._all = DenseChunks(client, self.held) if self.held else None
        self._by_present: dict[tuple[bool, ...], DenseChunks] = {}
        self._pulling = False

    def assign(self) -> None:
        if self._all is not None:
            self._all.take_values()
            self._client.backend.assign([self._all.rows], keep=True)
            self._client.finish_first_values({one.table for one in self.held})

    def agree(self, *, share: float, skip: bool, again: bool = False) -> bool:
        return skip

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        """Return the gradients to push; an empty list if no parameter has a gradient."""
        thawed = next((name for name, param in self._frozen if param.grad is not None), None)
        if thawed is not None:
            raise errors.BadInput(
                f"parameter {thawed!r} was frozen at job.prepare and has a gradient now: servers do not know it. "
                'Freeze it after job.prepare, or use sync="bsp"'
            )
        awake = {id(one.own) for one in stepped}
        grads = [one.param.grad if id(one.optimizer) in awake else None for one in self.held]
        present = tuple(grad is not None for grad in grads)
        if not any(present):
            return []
        chunks = self._chunks(present)
        chunks.take_grads([grad.to_dense() if grad.is_sparse else grad for grad in grads if grad is not None])
        return [chunks.rows]

    def update(self, stepped: Sequence[JobOptimizer], tables: Sequence[nn.Parameter]) -> None:
        """Put the values that the previous step requested into the model, and request new values after this push.

        So computation never waits for a push, and its values lack at most this worker's last step.
        """
        if not self._bounded:
            self._take()
            self._ask()

    def settle(self) -> None:
        self._take()
        self._ask()
        self._take()

    def _ask(self) -> None:
        if self._all is not None:
            self._client.pull([self._all.rows])
            self._pulling = True

    def _take(self) -> None:
        if self._all is not None and self._pulling:
            self._all.rows.wait()
            self._pulling = False
            self._all.give_values()

    def _chunks(self, present: tuple[bool, ...]) -> DenseChunks:
        if all(present) and self._all is not None:
            return self._all
        if present not in self._by_present:
            if len(self._by_present) >= 32:  # a model with ever new combinations keeps the latest
                self._by_present.pop(next(iter(self._by_present)))
            chosen = [one for one, here in zip(self.held, present, strict=True) if here]
            self._by_present[present] = DenseChunks(self._client, chosen)
        return self._by_present[present]


class FrozenDense:
    """Frozen parameters and float buffers, which no worker trains. All workers get the first worker's values."""

    def __init__(self, client: TableClient, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._client = client
        self.held: list[DenseSlot] = []
        first, table = 0, next_id(client)
        for name, tensor in tensors:
            if tensor.is_floating_point() and tensor.numel():
                chunks = -(-tensor.numel() // CHUNK)
                self.held.append(DenseSlot(name=name, param=tensor, table=table, first=first, chunks=chunks))
                first += chunks
        self._all: DenseChunks | None = None
        if self.held:
            client.declare([TableSpec(id=table, name="dense:still", dim=CHUNK)])
            self._all = DenseChunks(client, self.held)

    def assign(self) -> None:
        if self._all is not None:
            self._all.take_values()
            self._client.backend.assign([self._all.rows], keep=True)
            self._client.finish_first_values({one.table for one in self.held})

    def settle(self) -> None:
        if self._all is not None:
            self._client.pull([self._all.rows])
            self._all.rows.wait()
            self._all.give_values()
