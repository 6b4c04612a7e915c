"""Pure. Settings, reports and targets for the data workers of a job.

Trainers report `FeedState`s. `master.data.data_workers` turns these reports into a `FeedSeen`. `planning.dataworkers`
answers with a `FeedTarget`, which `job.scaling.data_workers` applies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from springtide import errors
from springtide.domain.core import validation

Poison = Literal["fail", "skip"]
SHOWN = 10  # most indices to show in a message, because a batch may have thousands
POISONS: tuple[Poison, ...] = ("fail", "skip")
SplitMode = Literal["auto", "stages", "verify", "off"]
SPLITS: tuple[SplitMode, ...] = ("auto", "stages", "verify", "off")


def number_of(text: str) -> int | None:
    """Parse the number of data workers; None for "auto"."""
    if text in ("auto", "off"):
        return None if text == "auto" else 0
    if not text.isdecimal():
        raise errors.BadInput(f"data workers {text!r}: give a number such as 2, auto or off")
    return int(text)


class BatchName(NamedTuple):
    """Identity of a mini-batch: samples `first` to `first + samples` of one shard in one epoch."""

    epoch: int
    shard: int
    first: int
    samples: int


def samples_named(indices: Sequence[int]) -> str:
    """Return the first indices as text, such as `samples 3, 7`."""
    shown = ", ".join(map(str, indices[:SHOWN])) + (", ..." if len(indices) > SHOWN else "")
    return f"sample{'' if len(indices) == 1 else 's'} {shown}"


class LeftOut(NamedTuple):
    """Unreadable samples of a batch that was trained without them, because the user chose to skip them."""

    batch: BatchName
    indices: tuple[int, ...]
    error: str
    """Error of the first unreadable sample."""

    def __str__(self) -> str:
        return f"{samples_named(self.indices)} (shard {self.batch.shard}, epoch {self.batch.epoch}): {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRules:
    """User settings for the data workers of a job."""

    workers: int | None = None
    """Number of data workers. None means that measurements determine the number; 0 means no data workers."""
    most: int | None = None
    """Upper limit on the tuned number; None means as many as the cores allow."""
    cpu: float | None = None
    """Cores of each data worker. None means that measurements determine the cores."""
    cores: float | None = None
    """Cores of the whole job, including workers and servers; None means all cores of its machines."""
    every_s: float = 30.0
    split: SplitMode = "auto"
    """Where the stateless part of the model's forward() runs. "auto": in the data workers that read the data set.
    "stages": in separate data workers, which get the batches from those that read. "verify": as "auto", and trainers
    recompute and compare every batch. "off": in the trainers, so that data workers only read.
    """
    poison: Poison = "fail"
    """Handling of a sample that cannot be read: "fail" the job after several tries, or "skip" and report the sample."""

    def __post_init__(self) -> None:
        validation.check_range(self, "workers", least=0, of="data workers: ")
        validation.check_range(self, "cpu", above=0, unit="cores each", of="data workers: ")

    @property
    def off(self) -> bool:
        return self.workers == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Report of one trainer about its queue of batches. Fields are totals since the trainer joined, unless they say
    `now`.
    """

    made: int = 0
    """Mini-batches that data workers have put into the queue."""
    taken: int = 0
    """Mini-batches that the training loop has consumed, from any source."""
    queued: int = 0
    room: int = 0
    """Capacity of the queue; 0 means that no data worker feeds this trainer."""
    workers: int = 0
    """Connected data workers now."""
    read_s: float = 0.0
    """Seconds that the trainer spent making batches itself."""
    waited_s: float = 0.0
    """Seconds that the loop waited for batches from data workers."""
    stateless_s: float = 0.0
    """Seconds that the trainer spent in the part of forward() that data workers could run, if known."""
    looped_s: float = 0.0
    checked: int = 0
    """Number of mini-batches from data workers that the trainer recomputed and found bit-identical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeen:
    """Measurements of one stage of data workers over the last interval, including the queue between the stage and its
    consumers.
    """

    consumers: int
    """Number of consumers: trainers, or data workers of the next stage."""
    workers: int
    cpu: float
    cpu_used: float
    """Mean cores used by each data worker."""
    made_per_s: float
    capable_per_s: float
    """Mini-batches per second that the trainers would consume if they never waited."""
    fill: float
    wait_share: float
    """Share of time that the consumers spend waiting for this stage."""
    gpu: bool = False
    """True if each data worker of the stage has a GPU. Then the number of cores is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSeen:
    """Measurements of a whole job's input over the last interval, summed over all trainers."""

    at: float
    trainers: int
    stages: tuple[StageSeen, ...]
    """Stages of data workers, first to last. The tuple has at least one stage. The last stage feeds the trainers."""
    trainer_cpu: float
    trainer_cpu_used: float
    steps_per_s: float
    capable_per_s: float
    """Mini-batches per second that the trainers would consume if they never waited for data."""
    own_share: float
    """Share of the loop's time that goes to work that data workers could do: reading, and the stateless part of
    forward()."""
    free_cpu: float
    """Unallocated cores of the cluster."""
    share_cpu: float = 0.0
    """Most cores of one data worker: a machine's cores divided by its GPUs or trainers. 0 means the
    cluster's unallocated cores.
    """
    free_gpu: int = 0
    """GPUs that data workers may get in addition to their current GPUs."""

    @property
    def last(self) -> StageSeen:
        return self.stages[-1]


class StageTarget(NamedTuple):
    """Target number and size of the data workers of one stage."""

    workers: int
    cpu: float | None
    """Number of cores of each data worker; None means no limit."""


def stage_of(rank: int, stages: int) -> int:
    """Return the stage in which a data worker runs. The lowest rank runs the last stage. If no data workers run the
    earlier stages, this stage runs them too.
    """
    return stages - 1 - rank % stages


def spread(count: int, cpu: float | None, stages: int) -> tuple[StageTarget, ...]:
    """Distribute data workers over stages. Later stages get data workers first, because a later stage can run without
    the earlier stages."""
    if stages < 2:
        return ()
    return tuple(StageTarget((count + stage) // stages, cpu) for stage in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedShare:
    """Report of a job that tunes its data workers. The allocator that divides cores among jobs reads this report."""

    trainers: int
    speed: float
    capable: float
    """Mini-batches per second that the trainers would consume if they never waited for data."""
    cpu: float
    """Cores that all data workers of the job have at present."""
    least: float
    """Fewest cores of the job's data workers: the starting size, or the user's fixed size. Every job gets this before
    any job gets more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTarget:
    """Decision of the tuner, which may equal the current state."""

    data_workers: int
    data_worker_cpu: float | None
    trainer_cpu: float | None
    """CPU limit of each trainer in cores; None leaves the limit unchanged."""
    why: str
    stages: tuple[StageTarget, ...] = ()
    """Targets of the stages, first to last, if there are several stages. The last stage's target equals `data_workers`
    and `data_worker_cpu`."""
