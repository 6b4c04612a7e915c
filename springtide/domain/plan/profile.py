"""Pure. Timing of workers' steps: by phase for users, and by four terms for the performance model.

Heartbeats carry the sums of these timings to the master, and `planning.perf_model.profiles` builds one `Profile` per
window.
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from springtide import errors
from springtide.domain.core.shape import Shape


class StepTiming(NamedTuple):
    """Timing of one step of one worker, in seconds by the worker's clock. The class is a tuple, because creating a
    dataclass in every step would take three times as long.
    """

    samples: int
    """Samples in the batches that this step trained."""
    total_s: float
    """Seconds from the end of the previous step to the end of this step."""
    data_s: float
    """Seconds of reading and collating the batch."""
    pull_wait_s: float
    """Seconds that the step waited for rows that had not arrived."""
    forward_s: float
    """Seconds from the delivery of the batch to the end of the model's forward(), without the pull wait."""
    backward_s: float
    """Seconds from the end of forward() to `optimizer.step()`: loss, backward pass, clipping."""
    push_wait_s: float
    """Seconds that `optimizer.step()` waited for the last push, for dense values, or for other ranks."""
    gradient_s: float
    """Term 1: computation of forward and backward. If tables are on servers, this term includes all local work of the
    worker."""
    update_s: float
    """Term 2: waiting while servers apply gradients. If tables are local, this term is `optimizer.step()`."""
    synchronization_s: float
    """Term 3: time of requests during which no server processed them: network, queues, other ranks."""
    lookup_s: float
    """Term 4: waiting while servers look up rows. If tables are local, this term is the lookups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSum:
    """Sums of step timings over `steps` steps. Heartbeats carry them."""

    steps: int = 0
    samples: int = 0
    total_s: float = 0.0
    data_s: float = 0.0
    pull_wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    push_wait_s: float = 0.0
    gradient_s: float = 0.0
    update_s: float = 0.0
    synchronization_s: float = 0.0
    lookup_s: float = 0.0

    def __add__(self, other: "TimingSum") -> "TimingSum":
        return TimingSum(**{name: getattr(self, name) + getattr(other, name) for name in SUM_FIELDS})

    @property
    def wait_share(self) -> float:
        return (self.pull_wait_s + self.push_wait_s) / self.total_s if self.total_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.total_s if self.total_s > 0 else 0.0


SUM_FIELDS = tuple(field.name for field in fields(TimingSum))
STEP_FIELDS = StepTiming._fields


_of_sum = operator.attrgetter(*SUM_FIELDS)


def total(sums: Iterable[TimingSum]) -> TimingSum:
    columns = zip(*map(_of_sum, sums), strict=True)
    return TimingSum(**dict(zip(SUM_FIELDS, map(sum, columns), strict=False)))


def summed(timings: Iterable[StepTiming]) -> TimingSum:
    steps = list(timings)
    columns = zip(*steps, strict=True)
    return TimingSum(steps=len(steps), **dict(zip(STEP_FIELDS, map(sum, columns), strict=False)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measurement of one configuration over one time window. The performance model is fitted to profiles.

    The timing is not validated. `planning.perf_model.fit` drops unusable values.
    """

    shape: Shape
    batch: int
    """Samples per step of one worker."""
    timing: TimingSum
    """Sums over the steps of all workers."""
    at: float
    worker_cores: float | None = None
    """Cores that all workers together used in the window; None if unknown."""
    server_cores: float | None = None
    """Cores that all servers together used in the window; None if unknown."""

    @property
    def step_s(self) -> float:
        """Mean seconds per step of one worker; NaN without steps."""
        return self.timing.total_s / self.timing.steps if self.timing.steps > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Constants of a job that are known, so that the performance model does not fit them."""

    dense_bytes: float
    """M: bytes of dense parameters that one step sends and fetches."""
    bandwidth: float
    """B: bytes per second of the network that the workers share."""
    dim: float
    """D: number of floats that one sample looks up, over all tables."""
    batch: int
    """m: current number of samples per step of one worker."""
    group: int = 0
    """Samples per step of all workers together (bsp); 0 in async."""

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            least = 0 if field.name in ("dense_bytes", "group") else 1e-12
            if not least <= number < math.inf:
                raise errors.BadInput(f"model facts: {field.name} {number!r}; expected a number above 0")
