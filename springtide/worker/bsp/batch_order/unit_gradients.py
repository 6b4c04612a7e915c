"""Keep the gradients of a step's units until the last unit, and sum the units of all ranks.

In: the gradients of every unit, from the step. Out: parts of the push, which hold each row once over all ranks. Next:
the servers apply the sums unchanged; if a rank caches the row, that rank applies them. Design:
docs/design/batch-order.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from springtide import _native, errors
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.bsp.batch_order import exchange, row_sums
from springtide.worker.bsp.batch_order.dense_sums import OrderedReducer
from springtide.worker.input.read_batch import BatchUnit
from springtide.worker.link.optimizer import JobOptimizer

NOT_STEPPED = (
    'the loop has gone on without optimizer.step(): with reduction="batch-order" it gets a batch a few samples at a '
    "time, and every one of them is stepped on. To train on more samples at once, raise batch_size"
)
CHANGED = (
    '{what} changed in the middle of a batch: with reduction="batch-order" the loop gets a batch a few samples at a '
    "time, and the step is taken with the last of them. Step schedulers once an epoch, not after every optimizer.step()"
)

SCHEDULED = {"lr": "the learning rate", "weight_decay": "weight_decay", "momentum": "momentum", "betas": "betas"}
"""Options of a parameter group that schedulers change, with their names in messages. OneCycleLR also changes momentum
or betas.
"""

Rate = tuple[str, list[float]]
Stepped = tuple[list[int], list[Rate]]
"""Optimizers that have stepped, by id, and their rates."""


class UnitGradients:
    """Gradients of the units of a step, one object per `job.prepare` with sums in batch order."""

    def __init__(self, client: TableClient, reducer: OrderedReducer) -> None:
        self._client, self._reducer = client, reducer
        self._now: BatchUnit | None = None
        self._rows: list[row_sums.RowGradients] = []
        self._as: Stepped | None = None
        self._done = True

    @property
    def share(self) -> float:
        return 1.0 if self._now is None else self._now.share

    def begin(self, unit: BatchUnit) -> None:
        self._now, self._done = unit, False

    def keep(self, stepped: Sequence[JobOptimizer], parts: Sequence[_native.StepRows]) -> bool:
        """Keep the gradients of the current unit after the loop has stepped; return True for this rank's last unit."""
        if self._now is None:
            return True
        seen = ([id(one) for one in stepped], [rate for one in stepped for rate in rates_of(one)])
        if self._as is not None and self._as != seen:
            raise errors.BadInput(CHANGED.format(what=changed(self._as, seen)))
        self._as, self._done = seen, True
        for part in parts:
            tables, keys, dims, grads = part.pushed()
            places = np.full(len(keys), self._now.place, dtype=np.int64)
            self._rows.append(row_sums.RowGradients(tables, keys, places, dims.astype(np.int64), grads))
        self._reducer.keep(self._now.place, self._now.share)
        return self._now.last

    def check_kept(self) -> None:
        """Raise BadInput if the loop asks for the next unit without a step on the current one."""
        if not self._done:
            raise errors.BadInput(NOT_STEPPED)

    def parts(self) -> list[_native.DenseRows]:
        """Return this rank's part of the push: the rows whose lowest rank is this one, summed over all ranks' units."""
        mine, group = row_sums.together(self._rows), self._reducer.group
        if group is not None:
            mine = exchanged(group, mine)
        if not len(mine.keys):
            return []
        mine = row_sums.summed(mine)
        part = self._client.dense(mine.tables, mine.keys, mine.dims)
        part.grads()[:] = mine.grads
        return [part]

    def drop(self) -> None:
        self._now, self._rows, self._as, self._done = None, [], None, True
        self._reducer.drop()


def rates_of(optimizer: JobOptimizer) -> list[Rate]:
    return [
        (told, [float(one) for one in (group[name] if isinstance(group[name], tuple | list) else [group[name]])])
        for group in optimizer.param_groups
        for name, told in SCHEDULED.items()
        if name in group
    ]


def changed(before: Stepped, now: Stepped) -> str:
    if before[0] != now[0]:
        return "the optimizers that step"
    pairs = zip(before[1], now[1], strict=False)
    return next((told for (told, old), (_, new) in pairs if old != new), "the parameter groups")


def exchanged(group: Any, mine: row_sums.RowGradients) -> row_sums.RowGradients:
    ranks, rank = group.size(), group.rank()
    number, first = row_sums.distinct(mine.tables, mine.keys)
    ids = mine.keys[first].tobytes() + mine.tables[first].tobytes()
    known = [ids_of(parcel) for parcel in exchange.to_each(group, [len(first).to_bytes(8, "little") + ids] * ranks)]
    home = row_sums.homes(known, rank)[number]
    parcels = [mine.where(home == peer).to_bytes() for peer in range(ranks)]
    return row_sums.together([row_sums.RowGradients.from_bytes(parcel) for parcel in exchange.to_each(group, parcels)])


def ids_of(parcel: bytes) -> tuple[row_sums.Tables, row_sums.Numbers]:
    count = int.from_bytes(parcel[:8], "little")
    keys = np.frombuffer(parcel, np.int64, count, 8)
    return np.frombuffer(parcel, np.uint16, count, 8 + keys.nbytes), keys
