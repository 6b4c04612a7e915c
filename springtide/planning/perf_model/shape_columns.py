"""Pure. Stores many shapes as columns, so that candidates need no objects."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import FIELDS, GIB, Prices, Shape

Floats = NDArray[np.float64]


def gpus_for(workers: Floats, each: Floats | float) -> Floats:
    """Compute the same as `resources.gpus_for`, for arrays."""
    share = np.asarray(each, dtype=np.float64)
    on_one = np.floor(np.divide(1.0, share, out=np.ones_like(share), where=share > 0) * (1 + 1e-9))
    return np.asarray(np.where(share > 0, np.ceil(workers / on_one), 0.0))


class ShapeColumns(NamedTuple):
    """Shapes as columns: one array per field, one row per candidate."""

    workers: Floats
    servers: Floats
    worker_cpu: Floats
    server_cpu: Floats
    worker_memory: Floats
    server_memory: Floats
    worker_gpu: Floats

    @property
    def gpus(self) -> Floats:
        return gpus_for(self.workers, self.worker_gpu)

    @property
    def cpu(self) -> Floats:
        return self.workers * self.worker_cpu + self.servers * self.server_cpu

    @property
    def memory(self) -> Floats:
        return self.workers * self.worker_memory + self.servers * self.server_memory

    def cost(self, prices: Prices) -> Floats:
        """Return the hourly cost of each shape (Eqn 7)."""
        return self.cpu * prices.cpu + self.memory / GIB * prices.memory + self.gpus * prices.gpu

    def taken(self, which: NDArray[np.generic]) -> "ShapeColumns":
        return ShapeColumns(*(column[which] for column in self))

    def shape(self, row: int) -> Shape:
        workers, servers, worker_cpu, server_cpu, worker_memory, server_memory, gpu = (c[row] for c in self)
        return Shape(
            workers=int(workers),
            servers=int(servers),
            worker_cpu=float(worker_cpu),
            server_cpu=float(server_cpu),
            worker_memory=int(worker_memory),
            server_memory=int(server_memory),
            worker_gpu=float(gpu),
        )


_fields = operator.attrgetter(*FIELDS)


def columns(many: Iterable[Shape]) -> ShapeColumns:
    rows = np.array([_fields(shape) for shape in many], dtype=np.float64)
    return ShapeColumns(*rows.reshape(-1, len(FIELDS)).T)


def joined(*parts: ShapeColumns) -> ShapeColumns:
    return ShapeColumns(*(np.concatenate(column) for column in zip(*parts, strict=True)))


Index = NDArray[Any]


class RaggedRows(NamedTuple):
    """Rows of different lengths in one flat array, with the row of each element and the length of each row."""

    owner: Index
    lengths: Index

    @property
    def starts(self) -> Index:
        starts: Index = np.cumsum(self.lengths) - self.lengths
        return starts

    @property
    def place(self) -> Index:
        place: Index = np.arange(len(self.owner)) - np.repeat(self.starts, self.lengths)
        return place

    def only(self, which: Index) -> "RaggedRows":
        """Return the selected elements. `which` is a mask or has ascending indices."""
        return of_owners(self.owner[which], len(self.lengths))

    def ordered(self, values: Floats) -> Index:
        """Return the indices sorted by value within each row; the sort is stable."""
        starts = self.starts.tolist()
        each = [
            np.argsort(values[first : first + length], kind="stable") + first
            for first, length in zip(starts, self.lengths.tolist(), strict=True)
        ]
        return np.concatenate(each) if each else np.zeros(0, dtype=np.int64)

    def best_before(self, values: Floats) -> Floats:
        """Return, for each element, the largest value before it in its row; -inf for the first element."""
        width = int(self.lengths.max(initial=0))
        whole = np.full((len(self.lengths), width + 1), -np.inf)
        place = self.place
        whole[self.owner, place + 1] = values
        return np.maximum.accumulate(whole, axis=1)[self.owner, place]


def of_lengths(lengths: Sequence[int] | Index) -> RaggedRows:
    counts = np.asarray(lengths, dtype=np.int64)
    return RaggedRows(np.repeat(np.arange(len(counts)), counts), counts)


def of_owners(owner: Index, rows: int) -> RaggedRows:
    return RaggedRows(owner, np.bincount(owner, minlength=rows))
