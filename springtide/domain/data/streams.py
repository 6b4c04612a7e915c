"""Pure. Streams as master and workers describe them: partitions, their ends, and the cuts between batches.

A partition is a shard without an end, and its offsets are samples. A batch is a range of offsets of one partition. It
ends at the next multiple of the batch size, or earlier at a *cut* that the master has recorded. So a second read of a
partition yields the same batches. Next: data/ledger/stream_ledger.py leases partitions, data/stream/ reads them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

FAR = 2**62
"""Where a lease of a partition ends whose end is not known."""
MOST_PARTITIONS = 2**16
"""Shard numbers that a stream takes: partitions may be added while a job runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCard:
    """Stream and read range of a data set. It is part of a `DatasetCard`, so it must be equal on all workers."""

    url: str
    """Without passwords."""
    start: str = "earliest"
    """Where a job that has not begun a partition begins: "earliest", "latest", or a time of day in seconds."""
    until: str = ""
    """"now": the job ends where the partitions ended when it began; empty: where the stream itself says it ends."""
    id: str = field(default="", compare=False)
    """Identity of the stream, drawn when it was made; empty: it has none, or nobody could tell."""


class PartitionRange(NamedTuple):
    """Range of offsets of a partition, as a reader sees it."""

    partition: int
    start: int
    """Where a job that has not begun it is to begin."""
    end: int
    """One more than the newest record's offset."""
    final: bool = False
    """Nothing will come after `end`."""


class BatchCut(NamedTuple):
    """Cut in a lease: a batch ends before offset `at`, which is not a multiple of the batch size."""

    shard: int
    first: int
    """Sample the lease began with."""
    at: int


class PartitionView(NamedTuple):
    """Position of a partition, reported in the heartbeat of the worker that holds it."""

    partition: int
    trained: int
    """All offsets before this one are trained."""
    end: int
    oldest_at: float
    """When the record at `trained` was appended, as time of day in seconds; 0 when there is none."""


class StepSums(NamedTuple):
    """Sums over training steps, from which a regression gets the cost of a step and the cost of a sample."""

    number: float = 0.0
    samples: float = 0.0
    seconds: float = 0.0
    squared: float = 0.0
    """Of samples x samples."""
    crossed: float = 0.0
    """Of samples x seconds."""

    def and_one(self, samples: float, seconds: float) -> "StepSums":
        return StepSums(
            self.number + 1,
            self.samples + samples,
            self.seconds + seconds,
            self.squared + samples * samples,
            self.crossed + samples * seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUse:
    """Counters of one worker on a stream since it started, and its current queue."""

    partitions: tuple[PartitionView, ...] = ()
    records: int = 0
    """Trained here."""
    late: int = 0
    corrupt: int = 0
    oversized: int = 0
    unkept: int = 0
    """Of late, corrupt and oversized ones, those whose dead letter could not be kept; and why not."""
    unkept_why: str = ""
    expired: int = 0
    """Deleted by the stream's retention before anyone had read them."""
    read_bytes: int = 0
    forwarded: int = 0
    """Batches given to other workers; of the same, bytes."""
    forwarded_bytes: int = 0
    received: int = 0
    queue: int = 0
    """Batches that wait here to be trained."""
    waited_s: float = 0.0
    """Seconds in which the loop had nothing to train."""
    busy_s: float = 0.0
    """Seconds in which it had."""
    steps: StepSums = field(default_factory=StepSums)
    """That the loop has done."""
    lag_p50_s: float = 0.0
    """From append to trained, of late."""
    lag_p99_s: float = 0.0
