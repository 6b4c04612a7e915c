"""A batch on its way from the reader to the loop, with its order and what was added to it.

In: worker/input/batches.py and the other feeds make a `ReadBatch`; caches, units and data workers add to it. Next:
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
    """A batch as it came through a queue, whoever made it."""

    batch: Any
    crossing: tuple[Any, ...] | None = None
    """What the moved part of forward() has made of it; None: nothing, the user's own forward runs."""
    check: bool = False
    """Whether that is to be compared with what forward() makes here."""


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What a schedule says about one batch."""

    step: int
    """How many batches were scheduled with it."""
    rank_of_sample: NDArray[np.int32]
    """Who trains each sample."""
    plans: Sequence[Any]
    """What each rank's cache does around the step."""


@dataclass(frozen=True, slots=True)
class AllottedBatch:
    """What is known of a batch beside this rank's part of it."""

    whole: Any
    """The group's batch, to be shared out otherwise should the schedule not hold."""
    made: ScheduledBatch
    digest: int
    """Of what was scheduled."""
    turn: int
    """Which schedule of this process it is of."""


@dataclass(frozen=True, slots=True)
class BatchUnit:
    """Which unit of a batch it is."""

    place: int
    """The how-manieth of the group's batch."""
    share: float
    """Part of the group's batch that it is: its gradients count by it."""
    first: bool
    last: bool
    """Of this rank's."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch with its order."""

    order: BatchOrder
    batch: Any
    whole: bool = False
    """The batch is the whole group's, not yet this rank's part of it."""
    plan: AllottedBatch | None = None
    """What a schedule has said about it, where there is one."""
    crossing: tuple[Any, ...] | None = None
    """What data workers have made of it besides: the results of the moved part of forward()."""
    check: bool = False
    """Whether those are to be compared with what forward() makes here."""
    unit: BatchUnit | None = None
    """Which unit of this rank's part it is, where gradients are summed in the order of the batch; the order is the
    part's."""
    empty: bool = False
    """None of its samples can be trained: the loop does not get it, servers are told its name only."""
    following: "Callable[[], ReadBatch | None]" = lambda: None
    """What comes after it, where that is read ahead; waits for it. None: nothing, or no batch."""

    @property
    def seen(self) -> Any:
        return self.batch if self.crossing is None else Crossed(self.batch, self.crossing)


PAUSED = ReadBatch(PAUSE, None)
"""Nothing more may ever come: whatever was handed out is pushed, stepped on or not, and its end waited for."""
RESTING = ReadBatch(PAUSE, None)
"""More will come: a loop that adds up gradients of several batches goes on adding."""
