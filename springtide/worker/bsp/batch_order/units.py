"""Split a rank's part of a batch into units: samples that are trained together on any rank.

In: this rank's parts of batches. Out: the samples in units, each with its position in the group's batch. Next: the step
keeps the gradients of each unit (unit_gradients.py) and pushes them with the last unit.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide.embedding.lookup.lookup import Lookups
from springtide.worker.input.read_batch import BatchUnit, ReadBatch
from springtide.worker.input.subset import SourcePicker

Places = NDArray[np.int64]


class UnitSplitter:
    """Splitter of batches into units, one per `job.prepare`."""

    def __init__(self, lookups: Lookups, picker: SourcePicker, unit: int) -> None:
        self.unit = unit
        self._lookups, self._picker = lookups, picker

    def cut(self, feed: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        for handed in feed:
            if handed.batch is None:
                yield handed
            else:
                yield from self.units(handed)

    def units(self, handed: ReadBatch) -> Iterator[ReadBatch]:
        order, jagged = handed.order, self._jagged(handed.batch)
        assert order.places is not None and order.whole is not None
        numbers = order.places // self.unit
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
            mine = np.arange(begin, end)
            batch = self._picker.pick(handed.batch, order.indices, mine, jagged=jagged)
            share = len(mine) / len(order.whole)
            unit = BatchUnit(int(numbers[begin]), share, first=begin == 0, last=end == len(numbers))
            yield replace(handed, batch=batch, unit=unit, crossing=None)  # crossings belong to the whole part

    def _jagged(self, batch: Any) -> bool:
        """Return True if the batch may not have one row per sample. This is unknown until the routes to all ids are
        known.
        """
        if not self._lookups.settled:
            return True
        return any(bag[3] for call in self._lookups.announced(batch) for bag in call.bags)
