"""Pure. Draw the samples of each batch as a function of (seed, epoch, step), for any number of ranks.

In: the size of a data set, and the user's options. Out: a `DrawnBatch` with its indices, its name, and the position
after it. Next: loader.py sends it to data workers. custom_sampler.py is the counterpart for a user's sampler.

The order of an epoch is the keyed permutation of data/shards.py. All ranks go through this order together: a round
takes up to `batch_size` samples for each rank. A position is a number of samples, and so means the same to every rank.
A run that resumes with other ranks or batch sizes still gives each sample once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.data import shards
from springtide.domain.data.data_workers import BatchName

Indices = npt.NDArray[np.int64]

TOGETHER = 4096  # samples whose indices are computed together: array operations cost about as much for a few


class LoaderPosition(NamedTuple):
    """Position of a loop in its epochs."""

    epoch: int
    done: int
    """Samples of this epoch that all ranks have consumed. With a user's sampler or a stream: batches."""
    mark: int = 0
    """Checksum of the consumed indices, with a user's sampler."""


class DrawnBatch(NamedTuple):
    """A batch to make."""

    indices: Indices
    name: BatchName
    after: LoaderPosition
    """Position after this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The batches of a rank, by epoch."""

    samples: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise errors.BadInput(f"batch_size={self.batch_size}: wanted 1 or more, or None for samples as they are")
        if not 0 <= self.rank < self.world:
            raise errors.BadInput(f"rank={self.rank} of world={self.world}: wanted 0 to world - 1")

    def steps(self, first: int = 0) -> int:
        """Return the number of this rank's batches in an epoch, from sample `first` of its order on."""
        rounds = self._rounds(first)
        return rounds if not rounds or len(self._positions(rounds - 1, first)[0]) else rounds - 1

    def batch(self, epoch: int, step: int, first: int = 0) -> DrawnBatch:
        """Return the step-th batch, counted from sample `first` of the epoch's order."""
        return next(self._drawn(LoaderPosition(epoch, first), range(step, step + 1)))

    def batches(self, place: LoaderPosition) -> Iterator[DrawnBatch]:
        """Yield all batches from a position to the end of its epoch."""
        steps, many = self.steps(place.done), max(1, TOGETHER // self.batch_size)
        for begin in range(0, steps, many):
            yield from self._drawn(place, range(begin, min(begin + many, steps)))

    def _drawn(self, place: LoaderPosition, steps: range) -> Iterator[DrawnBatch]:
        spans = [self._positions(step, place.done) for step in steps]
        found = np.concatenate([np.arange(span.start, span.stop, dtype=np.int64) for span, _ in spans])
        if self.shuffle:
            found = shards.permuted(found, self.samples, key=shards.order_key(self.seed, place.epoch))
        at = 0
        for span, end in spans:
            name = BatchName(place.epoch, 0, span.start, len(span))
            yield DrawnBatch(found[at : at + len(span)].copy(), name, LoaderPosition(place.epoch, end))
            at += len(span)

    def _rounds(self, first: int) -> int:
        left, whole = max(0, self.samples - first), self.batch_size * self.world
        return left // whole if self.drop_last else -(-left // whole)

    def _positions(self, step: int, first: int) -> tuple[range, int]:
        """Return this rank's positions of the epoch's order in a round, and the end of the round."""
        rounds, whole = self._rounds(first), self.batch_size * self.world
        if not 0 <= step < rounds:
            raise errors.BadInput(f"step {step}: wanted 0 to {rounds - 1} from sample {first} of {self.samples}")
        begin = first + step * whole
        end = min(begin + whole, self.samples)
        rest = self.samples - first - (rounds - 1) * whole
        if not self.drop_last and rest < self.world and rounds > 1 and self.batch_size > 1 and step >= rounds - 2:
            # A last round with fewer samples than ranks: share the last two rounds evenly, so that all ranks make equal
            # steps.
            begin = first + (rounds - 2) * whole
            middle = self.samples - (whole + rest) // 2
            begin, end = (begin, middle) if step == rounds - 2 else (middle, self.samples)
        part = shards.rank_part(end - begin, rank=self.rank, workers=self.world)
        return range(begin + part.start, begin + part.stop), end
