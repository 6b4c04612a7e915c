"""A batch on its way from the reader to the loop, with its order and the data added to it.

In: worker/input/batches.py and the other feeds create a `ReadBatch`. Caches, units and data workers add to it. Next:
worker/step trains it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.embedding.lookup.lookup import Crossed
from springtide.worker.input.batch_plan import PAUSE, BatchOrder


class Fed(NamedTuple):
    """Batch from a queue, made by this worker or by a data worker."""

    batch: Any
    crossing: tuple[Any, ...] | None = None
    """Results of the moved part of forward(). None if there are none, so that the user's own forward() runs."""
    check: bool = False
    """Whether to compare these results with the results of forward() in this worker."""


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """Schedule of one batch."""

    step: int
    """Number of batches scheduled so far, including this one."""
    rank_of_sample: NDArray[np.int32]
    """Rank that trains each sample."""
    plans: Sequence[Any]
    """Cache plan of each rank for the step."""


@dataclass(frozen=True, slots=True)
class AllottedBatch:
    """Schedule of a batch, kept beside this rank's part of it."""

    whole: Any
    """The group's batch, to split it differently if the schedule becomes invalid."""
    made: ScheduledBatch
    digest: int
    """Digest of the scheduled ids and ranks."""
    turn: int
    """Number of the schedule in this process."""


@dataclass(frozen=True, slots=True)
class BatchUnit:
    """Unit of a batch."""

    place: int
    """Index of the unit in the group's batch."""
    share: float
    """Fraction of the group's batch, which weights the unit's gradients."""
    first: bool
    last: bool
    """Whether this is the last unit of this rank's part."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Batch with its order."""

    order: BatchOrder
    batch: Any
    whole: bool = False
    """Whether the batch is the whole group's batch instead of this rank's part."""
    plan: AllottedBatch | None = None
    """Schedule of the batch, or None."""
    crossing: tuple[Any, ...] | None = None
    """Results of the moved part of forward() that data workers computed for this batch."""
    check: bool = False
    """Whether to compare these results with the results of forward() in this worker."""
    unit: BatchUnit | None = None
    """Unit of this rank's part, if gradients are summed in batch order. `order` is then the order of the whole part."""
    empty: bool = False
    """Whether no sample of the batch can be trained. The loop does not get such a batch; servers only get its
    identity.
    """
    following: "Callable[[], ReadBatch | None]" = lambda: None
    """Function that waits for the batch after this one, if batches are read ahead. It returns None if no batch
    follows.
    """

    @property
    def seen(self) -> Any:
        return self.batch if self.crossing is None else Crossed(self.batch, self.crossing)


PAUSED = ReadBatch(PAUSE, None)
"""Pause after which no batch may come. The step pushes all batches handed out so far and waits for the push."""
RESTING = ReadBatch(PAUSE, None)
"""Pause after which more batches come. A loop that accumulates gradients continues its sum."""
