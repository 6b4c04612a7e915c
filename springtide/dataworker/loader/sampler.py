"""Draws the samples of each batch: as a function of (seed, epoch, step) for any number of ranks, or with a user's
sampler.

In: the size of a data set and the user's options, or a sampler. Out: a `DrawnBatch` with its indices, its name, and the
position after it. Next: loader.py.
"""

import base64
import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from springtide import errors
from springtide.data import shards
from springtide.dataworker.feed import batch_rng
from springtide.domain.data.data_workers import BatchName

Indices = npt.NDArray[np.int64]

TOGETHER = 4096  # number of indices to compute together; the array operations cost about the same for fewer


class LoaderPosition(NamedTuple):
    """Position of a loop in its epochs."""

    epoch: int
    done: int
    """Samples of this epoch that all ranks have consumed. With a user's sampler or a stream, the number of batches
    instead."""
    mark: int = 0
    """Checksum of the consumed indices, if the user gave a sampler."""


class DrawnBatch(NamedTuple):
    """A batch that no process has made yet: its indices, its name and the position after it."""

    indices: Indices
    name: BatchName
    after: LoaderPosition


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
    groups: shards.RowGroups | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise errors.BadInput(f"batch_size={self.batch_size}: expected 1 or more, or None for samples as they are")
        if not 0 <= self.rank < self.world:
            raise errors.BadInput(f"rank={self.rank} of world={self.world}: expected 0 to world - 1")

    def __len__(self) -> int:
        return self.steps()

    def steps(self, first: int = 0) -> int:
        rounds = self._rounds(first)
        return rounds if not rounds or len(self._positions(rounds - 1, first)[0]) else rounds - 1

    def batches(self, place: LoaderPosition) -> Iterator[DrawnBatch]:
        steps, many = self.steps(place.done), max(1, TOGETHER // self.batch_size)
        for begin in range(0, steps, many):
            yield from self._drawn(place, range(begin, min(begin + many, steps)))

    def _drawn(self, place: LoaderPosition, steps: range) -> Iterator[DrawnBatch]:
        spans = [self._positions(step, place.done) for step in steps]
        found = np.concatenate([np.arange(span.start, span.stop, dtype=np.int64) for span, _ in spans])
        if self.shuffle:
            key = shards.order_key(self.seed, place.epoch)
            found = shards.shuffled(found, self.samples, key=key, groups=self.groups)
        at = 0
        for span, end in spans:
            name = BatchName(place.epoch, 0, span.start, len(span))
            yield DrawnBatch(found[at : at + len(span)].copy(), name, LoaderPosition(place.epoch, end))
            at += len(span)

    def _rounds(self, first: int) -> int:
        left, whole = max(0, self.samples - first), self.batch_size * self.world
        return left // whole if self.drop_last else -(-left // whole)

    def _positions(self, step: int, first: int) -> tuple[range, int]:
        """Return the positions that this rank trains in one round of the epoch's order, and the position where the
        round ends."""
        rounds, whole = self._rounds(first), self.batch_size * self.world
        begin = first + step * whole
        end = min(begin + whole, self.samples)
        rest = self.samples - first - (rounds - 1) * whole
        if not self.drop_last and rest < self.world and rounds > 1 and self.batch_size > 1 and step >= rounds - 2:
            # If the last round has fewer samples than ranks, divide the last two rounds evenly, so that all ranks make
            # the same number of steps.
            begin = first + (rounds - 2) * whole
            middle = self.samples - (whole + rest) // 2
            begin, end = (begin, middle) if step == rounds - 2 else (middle, self.samples)
        part = shards.rank_part(end - begin, rank=self.rank, workers=self.world)
        return range(begin + part.start, begin + part.stop), end


class UserSampler:
    """Batches from the indices of a sampler or, with `batch_size` None, of a batch sampler."""

    def __init__(
        self, sampler: Iterable[Any], *, batch_size: int | None, drop_last: bool = False, seed: int = 0
    ) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.seed = seed
        self._generator_began: str | None = None

    def __len__(self) -> int:
        try:
            count = len(self._sampler)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(
                f"len(loader) is not known: its sampler ({type(self._sampler).__name__}) has no len()"
            ) from None
        if self._batch_size is None:
            return count
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def batches(self, place: LoaderPosition) -> Iterator[DrawnBatch]:
        generator = self._generator()
        self._generator_began = None if generator is None else _written(generator)
        mark = 0
        for step, indices in enumerate(self._draw(place.epoch)):
            mark = zlib.crc32(indices.tobytes(), mark)
            after = LoaderPosition(place.epoch, step + 1, mark)
            if step >= place.done:
                yield DrawnBatch(indices, BatchName(place.epoch, 0, step, len(indices)), after)
            elif step + 1 == place.done and mark != place.mark:
                raise errors.BadInput(
                    f"{type(self._sampler).__name__} did not repeat itself: its first {place.done} batches differ from "
                    "those consumed before, so continuing would repeat samples and lose others. Give it a "
                    "seeded generator, let it draw from torch's random numbers, or restart the epoch"
                )

    def state(self) -> dict[str, Any]:
        """Return the extra state that is needed to repeat the current epoch, as plain values."""
        epoch = getattr(self._sampler, "epoch", None)
        generator = self._generator()
        began = self._generator_began or (None if generator is None else _written(generator))
        return {"sampler_epoch": epoch if isinstance(epoch, int) else None, "sampler_generator": began}

    def load(self, state: dict[str, Any]) -> None:
        """Make the next call of `batches` repeat the epoch of this state."""
        if state.get("sampler_epoch") is not None:
            self.set_epoch(int(state["sampler_epoch"]))
        generator, began = self._generator(), state.get("sampler_generator")
        if generator is not None and began is not None:
            raw = np.frombuffer(base64.b85decode(began), dtype=np.uint8)
            generator.set_state(torch.from_numpy(raw.copy()))

    def ended(self) -> None:
        """End the epoch. Later states belong to the next epoch."""
        self._generator_began = None

    def _draw(self, epoch: int) -> Iterator[Indices]:
        strand = batch_rng.Strand(self.seed, (epoch,))
        with strand.on():
            given = iter(self._sampler)
        while True:
            with strand.on():
                if self._batch_size is None:
                    taken = next(given, None)
                else:
                    taken = list(itertools.islice(given, self._batch_size)) or None
            if taken is None or (self._drop_last and self._batch_size and len(taken) < self._batch_size):
                return
            yield self._indices(taken)

    def _indices(self, taken: Any) -> Indices:
        try:
            found = np.array([operator.index(index) for index in taken], dtype=np.int64)
        except (TypeError, OverflowError) as error:
            raise errors.BadInput(
                f"{type(self._sampler).__name__} yielded {str(taken)[:80]!r}: expected integers that index the data "
                f"set ({'each batch a list of them' if self._batch_size is None else 'one at a time'})"
            ) from error
        if not len(found):
            raise errors.BadInput(f"{type(self._sampler).__name__} yielded an empty batch: expected 1 or more indices")
        return found

    def _generator(self) -> torch.Generator | None:
        for holder in (self._sampler, getattr(self._sampler, "sampler", None)):
            if isinstance(found := getattr(holder, "generator", None), torch.Generator):
                return found
        return None


def _written(generator: torch.Generator) -> str:
    return base64.b85encode(generator.get_state().numpy().tobytes()).decode()
