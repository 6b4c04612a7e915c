"""Pure. Settings, reports and targets for the data workers of a job.

In: `cli.job.run` fills in `FeedRules`; trainers report `FeedState` in their heartbeats. Next:
`master.data.data_workers` turns the reports into a `FeedSeen`. `planning.dataworkers` answers with a `FeedTarget`.
`job.scaling.data_workers` applies the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from springtide import errors

Poison = Literal["fail", "skip"]
SHOWN = 10  # indices in a message; there may be thousands
POISONS: tuple[Poison, ...] = ("fail", "skip")
SplitMode = Literal["auto", "stages", "verify", "off"]
SPLITS: tuple[SplitMode, ...] = ("auto", "stages", "verify", "off")


def number_of(text: str) -> int | None:
    """How many data workers a word means; None: found out."""
    if text in ("auto", "off"):
        return None if text == "auto" else 0
    if not text.isdecimal():
        raise errors.BadInput(f"data workers {text!r}: wanted a number, auto or off, such as 2")
    return int(text)


def poison_of(text: str) -> Poison:
    for known in POISONS:
        if text == known:
            return known
    raise errors.UnknownName("policy", text, POISONS)


def split_of(text: str) -> SplitMode:
    for known in SPLITS:
        if text == known:
            return known
    raise errors.UnknownName("split", text, SPLITS)


class BatchName(NamedTuple):
    """Identity of a mini-batch: samples `first` to `first + samples` of one shard in one epoch."""

    epoch: int
    shard: int
    first: int
    samples: int


def samples_named(indices: Sequence[int]) -> str:
    """`samples 3, 7`, the first of them."""
    shown = ", ".join(map(str, indices[:SHOWN])) + (", ..." if len(indices) > SHOWN else "")
    return f"sample{'' if len(indices) == 1 else 's'} {shown}"


class LeftOut(NamedTuple):
    """Unreadable samples that a batch was trained without, because the user chose to skip them."""

    batch: BatchName
    indices: tuple[int, ...]
    """In the data set."""
    error: str
    """The first one's."""

    def __str__(self) -> str:
        return f"{samples_named(self.indices)} (shard {self.batch.shard}, epoch {self.batch.epoch}): {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRules:
    """User settings for the data workers of a job."""

    workers: int | None = None
    """How many; None: found out by measuring, 0: none at all."""
    most: int | None = None
    """No more than that many where it is found out; None: as many as the cores allow."""
    cpu: float | None = None
    """Cores of one; None: found out."""
    cores: float | None = None
    """Cores that the whole job may take, with its workers and servers; None: all that its machines have."""
    every_s: float = 30.0
    """Seconds between two decisions."""
    split: SplitMode = "auto"
    """The stateless part of the model's forward(): "auto": it goes with the data set; "stages": to data workers of its
    own, after those that read the data set; "verify": it goes with the data set, and trainers compute it too, for every
    batch, and compare; "off": it stays, and data workers only read."""
    poison: Poison = "fail"
    """When a sample cannot be made: "fail" the job after it was tried often, or "skip" and report it."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise errors.BadInput(f"data workers: {self.workers}; wanted 0 or more, or auto")
        if self.cpu is not None and self.cpu <= 0:
            raise errors.BadInput(f"data workers: {self.cpu:g} cores each; wanted more than 0")

    @property
    def off(self) -> bool:
        return self.workers == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Report of one trainer about its input queue. Fields are totals since the trainer joined, except those marked
    `now`."""

    made: int = 0
    """Mini-batches that data workers have put into its queue."""
    taken: int = 0
    """Mini-batches that its loop has had, wherever they were made."""
    queued: int = 0
    """Made and not taken, now."""
    room: int = 0
    """How many the queue holds at most; 0: nobody feeds it."""
    workers: int = 0
    """Data workers that it is connected to, now."""
    read_s: float = 0.0
    """Seconds that it has spent making batches itself."""
    waited_s: float = 0.0
    """Seconds that its loop has waited for batches of others."""
    stateless_s: float = 0.0
    """Seconds that it has spent in the part of forward() that could be split off, where that is known."""
    looped_s: float = 0.0
    """Seconds of its loop in all."""
    checked: int = 0
    """Mini-batches of data workers that it has computed itself too, and found equal to the bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeen:
    """Measurements of one stage of data workers over the last interval, including the queue to its consumers."""

    consumers: int
    """Who take from it: trainers, or the data workers of the next stage."""
    workers: int
    cpu: float
    """Cores of one."""
    cpu_used: float
    """Cores that one has used, on average."""
    made_per_s: float
    capable_per_s: float
    """Mini-batches that the trainers would train a second if they never waited."""
    fill: float
    wait_share: float
    """Share of the consumers' time spent waiting for this stage."""
    gpu: bool = False
    """Whether each of its data workers has a GPU: one, and cores as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSeen:
    """Input measurements of a whole job over the last interval, summed over all trainers."""

    at: float
    trainers: int
    data_workers: int
    """That are there and connected."""
    data_worker_cpu: float
    """Cores of one."""
    data_worker_cpu_used: float
    """Cores that one has used, on average."""
    trainer_cpu: float
    trainer_cpu_used: float
    steps_per_s: float
    """Mini-batches trained a second."""
    made_per_s: float
    """Mini-batches that data workers made a second: enqueued."""
    capable_per_s: float
    """Mini-batches that trainers would train a second if they never waited for data: the rate of dequeueing."""
    fill: float
    """Mean of queued / room, 0 to 1."""
    wait_share: float
    """Share of the loops' time spent waiting for others' batches."""
    own_share: float
    """Share of the loops' time spent in what data workers could do: reading, and the stateless part of forward()."""
    free_cpu: float
    """Cores of the cluster that nobody has."""
    share_cpu: float = 0.0
    """Cores of one data worker at most: a machine's for each of its GPUs, or for each trainer; 0: what is free."""
    free_gpu: int = 0
    """GPUs that data workers may have beyond those they have."""
    stages: tuple[StageSeen, ...] = ()
    """First to last, where there is more than one; what is said of data workers above is then the last one's."""


class StageTarget(NamedTuple):
    """Target number and size of the data workers of one stage."""

    workers: int
    cpu: float | None
    """Cores of each; None: no limit."""


def stage_of(rank: int, stages: int) -> int:
    """Which stage a data worker runs. The lowest rank runs the last: with nobody before it, it makes all of them."""
    return stages - 1 - rank % stages


def spread(count: int, cpu: float | None, stages: int) -> tuple[StageTarget, ...]:
    """So many data workers over so many stages, evenly; later stages first, since they can do without earlier ones."""
    if stages < 2:
        return ()
    return tuple(StageTarget((count + stage) // stages, cpu) for stage in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedShare:
    """Report of a job that tunes its data workers, for the allocator that divides cores among jobs."""

    trainers: int
    speed: float
    """Mini-batches trained a second."""
    capable: float
    """The same if its trainers never waited for data."""
    cpu: float
    """Cores of its data workers now, all together."""
    least: float
    """Cores that it should have before others get more: to begin with, or what its user has fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTarget:
    """Decision of the tuner. It can equal the current state."""

    data_workers: int
    data_worker_cpu: float | None
    trainer_cpu: float | None
    """Cores that a trainer is held to; None: as it is."""
    why: str
    spare_cpu: float = 0.0
    """Cores that the trainers had at first and do not need, all together: others may have them when they ask."""
    most_cpu: float | None = None
    """The largest data worker that pays, once that is known; smaller ones may fill what is left of a machine."""
    stages: tuple[StageTarget, ...] = ()
    """First to last, where there is more than one; the last is `data_workers` of `data_worker_cpu`."""
