"""Find the samples of a batch that cannot be read, and build the batch without them.

In: a data set's `fetch`, and the indices of a batch that raised. Out: the bad samples with their first error, and the
rest of the batch. Next: worker/input/feed_switch.py reports the bad samples. batches.py trains the rest, or skips the
batch.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from springtide import errors
from springtide.data.source import Fetch, Indices, SampleSource, on_one_line
from springtide.domain.data.data_workers import samples_named

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BadSamples:
    """Samples of one batch that raise when read alone."""

    indices: tuple[int, ...]
    error: str
    """Error of the first bad sample, on one line."""

    def __str__(self) -> str:
        return samples_named(self.indices)


class BatchRest(NamedTuple):
    """Readable rest of a batch."""

    batch: Any
    """Collated rest of the batch, or None if no sample is left."""
    kept: Indices
    """Positions of the kept samples among the requested samples."""
    borrowed: bool = False
    """Whether the batch is a sample of another rank, for a rank without samples of its own. Its gradient has no
    weight.
    """


def find(fetch: Fetch, indices: Indices) -> BadSamples | None:
    """Read the samples one by one and return the bad ones; None if all are readable."""
    culprits, error = [], ""
    for index in indices:
        try:
            fetch(np.array([index], dtype=np.int64))
        except Exception as raised:  # a user's data set may raise anything
            culprits.append(int(index))
            error = error or on_one_line(raised)
    return BadSamples(tuple(culprits), error) if culprits else None


def without(fetch: Fetch, indices: Indices, poison: BadSamples | None) -> tuple[BatchRest, BadSamples | None]:
    """Build the batch without the bad samples; return it and the samples left out. If the rest cannot be read together,
    all are left out.
    """
    kept = np.arange(len(indices)) if poison is None else np.flatnonzero(~np.isin(indices, poison.indices))
    if not len(kept):
        return BatchRest(None, kept), poison
    try:
        return BatchRest(fetch(indices[kept]), kept), poison
    except Exception as raised:  # no single sample is at fault, so no worker can build this batch
        return BatchRest(None, kept[:0]), BadSamples(tuple(indices.tolist()), on_one_line(raised))


def borrow(fetch: Fetch, indices: Indices) -> BatchRest | None:
    """Read the first readable sample of the group's batch; None if there is none."""
    for index in indices:
        try:
            return BatchRest(fetch(np.array([index], dtype=np.int64)), np.empty(0, dtype=np.int64), borrowed=True)
        except Exception as raised:  # a user's data set may raise anything
            log.debug("sample %d cannot be borrowed: %s", index, on_one_line(raised))
    return None


def telling(source: SampleSource) -> SampleSource:
    """Wrap an iterable source: if the data set raises, the error explains why no sample can be skipped."""

    def runs(run: Callable[[], Iterable[Any]]) -> Callable[[], Iterator[Any]]:
        def told() -> Iterator[Any]:
            place = 0
            try:
                for batch in run():
                    yield batch
                    place += 1
            except Exception as raised:  # a user's data set may raise anything
                raise errors.UnreadableSample(
                    f"{on_one_line(raised)}: of an IterableDataset nothing can be left out (--poison skip), since "
                    f"nobody can read on behind what it raises, here in mini-batch {place} of an iteration; pass over"
                    " the sample in its __iter__, or use a data set with indices"
                ) from raised

        return told

    return replace(source, stream=runs(source.stream), items=runs(source.items))
