"""Pure. Messages between master and workers about streams: partitions, their ends, and the cuts between batches.

A partition is a shard without an end. A batch is a range of offsets of a partition. A batch ends at the next multiple
of the batch size, or earlier at a *cut* that the master has recorded. A second reader therefore finds the same batches.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

FAR = 2**62
"""Value of `end` in a lease on a partition whose end is unknown."""
MOST_PARTITIONS = 2**16
"""How many shard numbers a stream reserves, because partitions may be added while a job runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCard:
    """Stream and read range of a data set. A `StreamCard` is part of a `DatasetCard`, so it must be equal on all
    workers."""

    url: str
    """URL without passwords."""
    start: str = "earliest"
    """Start of a partition that the job has not read: "earliest", "latest", or a Unix time in seconds."""
    until: str = ""
    """"now": the job stops at the ends that partitions have at its start. Empty: the job stops at the end of the
    stream."""
    id: str = field(default="", compare=False)
    """Identity of the stream, drawn at its creation; empty if the stream has no identity, or if the identity is
    unknown.
    """


class PartitionRange(NamedTuple):
    """Range of offsets of a partition, as a reader sees it."""

    partition: int
    start: int
    """First offset for a job that has not begun the partition."""
    end: int
    """Offset after the newest record of the partition."""
    final: bool = False
    """True if no record will follow `end`."""


class BatchCut(NamedTuple):
    """Cut in a lease: a batch ends before offset `at`, which is not a multiple of the batch size."""

    shard: int
    first: int
    """First sample of the lease."""
    at: int


class PartitionView(NamedTuple):
    """Position of a partition, reported in the heartbeat of the worker that holds it."""

    partition: int
    trained: int
    """Offset before which all offsets are trained."""
    end: int
    oldest_at: float
    """Append time of the record at `trained`, as Unix time in seconds; 0 if there is no earlier offset."""


class StepSums(NamedTuple):
    """Sums over training steps. From these sums, a regression derives the cost of a step and the cost of a sample."""

    number: float = 0.0
    samples: float = 0.0
    seconds: float = 0.0
    squared: float = 0.0
    """Sum of (samples x samples) of each step."""
    crossed: float = 0.0
    """Sum of (samples x seconds) of each step."""

    def and_one(self, samples: float, seconds: float) -> "StepSums":
        return StepSums(
            self.number + 1,
            self.samples + samples,
            self.seconds + seconds,
            self.squared + samples * samples,
            self.crossed + samples * seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCounts:
    """Records of a stream that one worker or all workers trained, and that they could not train."""

    records: int = 0
    """Trained records."""
    late: int = 0
    corrupt: int = 0
    oversized: int = 0
    unkept: int = 0
    """Number of late, corrupt and oversized records whose dead letter could not be stored. `unkept_why` gives the
    reason, for several workers that of the first."""
    unkept_why: str = ""
    expired: int = 0
    """Number of records that the stream's retention deleted before a worker read them."""
    forwarded: int = 0
    """Batches forwarded to other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUse(StreamCounts):
    """Counters of one worker on a stream since the worker started, and the present length of its queue."""

    partitions: tuple[PartitionView, ...] = ()
    queue: int = 0
    """Batches waiting to be trained on this worker."""
    waited_s: float = 0.0
    """Seconds in which the training loop had no batch to train."""
    busy_s: float = 0.0
    """Seconds in which the training loop had batches to train."""
    steps: StepSums = field(default_factory=StepSums)
    """Sums over the steps of the training loop."""
    lag_p50_s: float = 0.0
    """Recent delay from append to training."""
    lag_p99_s: float = 0.0
