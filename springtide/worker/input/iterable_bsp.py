"""Batches of an IterableDataset for a bsp group: every rank reads rounds with one mini-batch per rank.

In: mini-batches from data/source.py, equal on all ranks. Out: this rank's mini-batch of each round, like batches.read.
If a schedule (worker/cache/sample_allocation.py) may allocate samples, the output is the round as one batch. The round
is then split by rows, or by samples if the user has a `collate_fn`.

All ranks read the whole data set, so it must yield the same samples in the same order everywhere. Next:
worker/step/bsp_step.py. For async jobs, iterable.py shares an IterableDataset.
"""

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from springtide import errors
from springtide.data.source import SampleSource, as_batch
from springtide.domain.data.samples import SampleRange
from springtide.worker.bsp.group import BspGroup
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input import subset
from springtide.worker.input.batch_plan import PAUSE, BatchOrder, Indices
from springtide.worker.input.batches import samples_in
from springtide.worker.input.read_batch import ReadBatch
from springtide.worker.input.readahead import BatchReadahead
from springtide.worker.input.subset import NotRows

log = logging.getLogger(__name__)
KEPT = 4  # rounds: the current one, the next one, the one being read, and one spare
NOT_BY_ROWS = (
    "mini-batches of this IterableDataset are not a row a sample (values that are no tensors), and it cannot be asked "
    "for samples again: each rank trains its own mini-batch of a round"
)


class DataRound(Protocol):
    """One mini-batch per rank, and any other subset of their samples."""

    def part(self, rank: int) -> Any: ...

    @property
    def whole(self) -> Any: ...

    def taken(self, places: Indices) -> Any: ...


class ByRows:
    """Round of mini-batches from torch's own collate, joined and split by rows."""

    def __init__(self, parts: Sequence[Any], size: int) -> None:
        """Join the mini-batches of `size` samples each; `NotRows` if a value does not have one row per sample."""
        self.parts, self.size, self.whole = parts, size, joined(parts, size)

    def part(self, rank: int) -> Any:
        return self.parts[rank]

    def taken(self, places: Indices) -> Any:
        rank, total = int(places[0]) // self.size, self.size * len(self.parts)
        if np.array_equal(places, np.arange(rank * self.size, (rank + 1) * self.size)):
            return self.parts[rank]
        return self.whole if len(places) == total else subset.rows_of(self.whole, total, torch.from_numpy(places))


class BySamples:
    """Round of samples that the user's `collate_fn` turns into batches, in any combination."""

    def __init__(self, parts: Sequence[list[Any]], collate: Callable[[list[Any]], Any]) -> None:
        self.parts, self._collate = parts, collate
        self._samples = [sample for part in parts for sample in part]

    def part(self, rank: int) -> Any:
        return self._collate(self.parts[rank])

    @property
    def whole(self) -> Any:
        return self._collate(self._samples)

    def taken(self, places: Indices) -> Any:
        return self._collate([self._samples[place] for place in places.tolist()])


class RecentRound(NamedTuple):
    """Recent round with the numbers of its samples, which count through the pass."""

    first: int
    samples: int
    round_: DataRound


class IterableRounds:
    """Rounds of one pass."""

    def __init__(self, source: SampleSource, *, rank: int, workers: int) -> None:
        self._source, self._rank, self._workers = source, rank, workers
        self.wholes: Callable[[], bool] | None = None
        """Function that returns whether rounds are needed whole, if a schedule may allocate them; else None."""
        self._recent: deque[RecentRound] = deque(maxlen=KEPT)
        self._number = 0
        self._said = False

    @property
    def _own(self) -> Callable[[list[Any]], Any] | None:
        """Return the user's `collate_fn` if samples are read uncollated, in a group that may allocate them."""
        return None if self.wholes is None else self._source.collate

    @property
    def again(self) -> bool:
        """Return True if any samples of a round can form a batch; otherwise only rows of a batch are available."""
        return self._own is not None

    def shared(self, sharing: CacheCoordinator | None, group: BspGroup | None, epochs: range) -> Iterator[ReadBatch]:
        """Return the batches of a pass: allocated by a schedule if there may be one, else one mini-batch per rank."""
        if sharing is None or group is None:
            return self.read(epochs)
        allotting = sharing.allotting
        allotting.picker, self.wholes = self, lambda: allotting.wholes
        sharing.restart(group.place)
        return iter(BatchReadahead(self.read(epochs), allotting.make_ready, allotting.review, sharing.read))

    def read(self, epochs: range) -> Iterator[ReadBatch]:
        """Yield round after round. An incomplete last round is left out, because every rank needs a batch."""
        for epoch in epochs:
            first = 0
            round_: list[Any] = []
            for part in self._source.stream() if self._own is None else self._source.items():
                round_.append(part)
                if len(round_) == self._workers:
                    yield (handed := self._made(tuple(round_), epoch, first))
                    first += handed.order.samples
                    round_.clear()

    def fetch(self, samples: Indices) -> Any:
        """Return the batch of the samples with these numbers, from one of the last rounds."""
        for recent in list(self._recent):
            places = samples - recent.first
            if 0 <= places[0] < recent.samples:
                return as_batch(recent.round_.taken(places))
        raise errors.JobFailed(f"sample {samples[0]} of the pass is not at hand any more")

    def pick(self, batch: Any, samples: Indices, places: Indices, *, jagged: bool) -> Any:
        return self.fetch(samples[places])

    def _made(self, parts: tuple[Any, ...], epoch: int, first: int) -> ReadBatch:
        own, rank = self._own, self._rank
        counts = [samples_in(one) if own is None else len(one) for one in parts]
        mine = counts[rank]
        identity = SampleRange(epoch=epoch, shard=epoch * self._workers + rank, first=first, count=mine)
        order = BatchOrder(indices=PAUSE.indices, ranges=(identity,), share=mine / max(1, sum(counts)))
        round_ = None if self.wholes is None else self._round(parts, counts)
        if round_ is None or self.wholes is None:
            return ReadBatch(order, as_batch(parts[rank] if own is None else own(parts[rank])))
        numbers = self._number + np.arange(sum(counts))
        self._recent.append(RecentRound(self._number, sum(counts), round_))  # before `fetch` can need it
        self._number += sum(counts)
        places = np.arange(rank * mine, (rank + 1) * mine)
        order = dataclasses.replace(order, indices=numbers[places], whole=numbers, places=places)
        whole = self.wholes()
        return ReadBatch(order, as_batch(round_.whole if whole else round_.part(rank)), whole=whole)

    def _round(self, parts: tuple[Any, ...], counts: Sequence[int]) -> DataRound | None:
        """Return a round that a schedule may allocate; None if part sizes differ or values do not have one row per
        sample. All ranks agree.
        """
        if len(set(counts)) > 1 or not counts[0]:
            return None
        if self._own is not None:
            return BySamples(parts, self._own)
        try:
            return ByRows(parts, counts[0])
        except NotRows:
            if not self._said:
                log.warning("samples are not scheduled, and no rows kept: %s", NOT_BY_ROWS)
            self._said = True
            return None


def joined(parts: Sequence[Any], samples: int) -> Any:
    """Join mini-batches of `samples` samples each; `NotRows` if a value does not have one row per sample."""
    one = parts[0]
    if any(type(other) is not type(one) for other in parts):
        raise NotRows
    if isinstance(one, torch.Tensor):
        if any(part.dim() == 0 or part.shape[0] != samples or part.shape[1:] != one.shape[1:] for part in parts):
            raise NotRows
        return torch.cat(list(parts))
    if isinstance(one, Mapping):
        if any(part.keys() != one.keys() for part in parts):
            raise NotRows
        return {key: joined([part[key] for part in parts], samples) for key in one}
    if isinstance(one, tuple | list):
        if any(len(part) != len(one) for part in parts):
            raise NotRows
        if len(one) == samples and one and not any(isinstance(value, torch.Tensor) for value in one):
            return type(one)(value for part in parts for value in part)
        values = [joined(each, samples) for each in zip(*parts, strict=True)]
        return type(one)(*values) if hasattr(one, "_fields") else type(one)(values)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one)]
        return dataclasses.replace(
            one, **{name: joined([getattr(part, name) for part in parts], samples) for name in names}
        )
    raise NotRows
