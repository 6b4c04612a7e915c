"""Pure. Many shapes as columns: what is chosen from, without an object a candidate.

In: `planning.candidates.pareto`. Out: `ShapeColumns`, of which `planning.allocate.choose` makes a `Shape` only for what
is chosen.
"""

import operator
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import FIELDS, GIB, Prices, Shape

Floats = NDArray[np.float64]


class ShapeColumns(NamedTuple):
    """A field a column; as many rows as candidates."""

    workers: Floats
    servers: Floats
    worker_cpu: Floats
    server_cpu: Floats
    worker_memory: Floats
    server_memory: Floats

    @property
    def cpu(self) -> Floats:
        return self.workers * self.worker_cpu + self.servers * self.server_cpu

    @property
    def memory(self) -> Floats:
        return self.workers * self.worker_memory + self.servers * self.server_memory

    def cost(self, prices: Prices) -> Floats:
        """Eqn 7, an hour."""
        return self.cpu * prices.cpu + self.memory / GIB * prices.memory

    def taken(self, which: NDArray[np.generic]) -> "ShapeColumns":
        return ShapeColumns(*(column[which] for column in self))

    def shape(self, row: int) -> Shape:
        workers, servers, worker_cpu, server_cpu, worker_memory, server_memory = (c[row] for c in self)
        return Shape(
            workers=int(workers),
            servers=int(servers),
            worker_cpu=float(worker_cpu),
            server_cpu=float(server_cpu),
            worker_memory=int(worker_memory),
            server_memory=int(server_memory),
        )


_fields = operator.attrgetter(*FIELDS)


def columns(many: Iterable[Shape]) -> ShapeColumns:
    rows = np.array([_fields(one) for one in many], dtype=np.float64)
    return ShapeColumns(*rows.reshape(-1, len(FIELDS)).T)


def joined(*parts: ShapeColumns) -> ShapeColumns:
    return ShapeColumns(*(np.concatenate(column) for column in zip(*parts, strict=True)))
