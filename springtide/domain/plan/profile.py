"""Pure. Step timings of workers: four waits for users, and four terms for the performance model.

In: worker/link/step_timer.py creates one StepTiming per step. Next: heartbeats carry their sums to the master.
`planning.perf_model.profiles` builds one `Profile` per window. `planning.perf_model.fit` fits a model to the profiles.
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from springtide import errors
from springtide.domain.core.shape import Shape


class StepTiming(NamedTuple):
    """Timing of one step of one worker, in seconds of the worker's clock. It is a tuple because a dataclass costs three
    times as much per step."""

    samples: int
    """Samples of the batches that this step trained."""
    total_s: float
    """From the end of the step before to the end of this one."""
    data_s: float
    """Reading and collating the batch."""
    pull_wait_s: float
    """Blocked on rows that were not here yet."""
    forward_s: float
    """From the batch being handed out to the end of the model's forward, without the pull wait."""
    backward_s: float
    """From there to `optimizer.step()`: the loss, the backward pass, clipping."""
    push_wait_s: float
    """Inside `optimizer.step()`, blocked: on the last push, on dense values, on other ranks."""
    gradient_s: float
    """Term 1 of the model: forward and backward compute; with tables on servers, all that the worker does itself."""
    update_s: float
    """Term 2: waits for servers that apply gradients; with tables in this process, `optimizer.step()`."""
    synchronization_s: float
    """Term 3: waits for requests under way that no server was working on: network, queues, other ranks."""
    lookup_s: float
    """Term 4: waits for servers that look rows up; with tables in this process, the lookups."""


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
    """Measurement of one configuration over one window. The performance model is fitted to profiles.

    The timing is not validated. `planning.perf_model.fit` drops unusable values.
    """

    shape: Shape
    batch: int
    """Samples of one step of one worker."""
    timing: TimingSum
    """Over the steps of all workers."""
    at: float
    """When the window ended."""
    worker_cores: float | None = None
    """Cores that all workers together used in the window; None: nobody has counted."""
    server_cores: float | None = None
    """The same of servers."""

    @property
    def step_s(self) -> float:
        """Mean seconds of a step of one worker; NaN without steps."""
        return self.timing.total_s / self.timing.steps if self.timing.steps > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Constants of a job that the performance model does not fit."""

    dense_bytes: float
    """M: bytes of dense parameters that a step sends and fetches."""
    bandwidth: float
    """B: bytes a second of the network that workers share."""
    dim: float
    """D: floats that one sample looks up, over all tables."""
    batch: int
    """m: samples of one step of one worker, as it is now."""
    group: int = 0
    """Samples of one step of all workers together, in step (bsp), each of which has its part; 0: at their own pace."""

    def __post_init__(self) -> None:
        for each in fields(self):
            number = getattr(self, each.name)
            least = 0 if each.name in ("dense_bytes", "group") else 1e-12
            if not least <= number < math.inf:
                raise errors.BadInput(f"model facts: {each.name} {number!r}; wanted a number above 0")
