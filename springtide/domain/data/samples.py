"""Pure. Batches, sample ranges and the description of a data set that the master needs to lease its shards.

In: data/source.py counts the samples. Next: data/shards.py cuts shards, worker/input/batches.py yields batches.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from springtide import errors
from springtide.domain.data.streams import StreamCard


class Batch(NamedTuple):
    """Features and labels of one mini-batch. It also unpacks: ``for x, y in batches``."""

    x: Any
    y: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRange:
    """Samples ``first`` to ``first + count`` of a shard, in the shuffled order of its epoch.

    A range means the same samples for every reader. Slots remember the applied ranges, so each range is applied once.
    """

    epoch: int
    shard: int
    """Number of the shard, unique in the job, over epochs and data sets."""
    first: int
    count: int
    shard_samples: int = 0
    """Samples of the whole shard, the same whoever says it; 0: not known, as of a partition of a stream. Slots keep
    whole shards that are side by side as one range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCard:
    """Settings that determine the samples of each shard. Workers with equal cards get identical shards."""

    samples: int
    """How many samples one epoch has."""
    batch_size: int
    """Samples of one step of a worker (async) or of the whole group (bsp). Shards hold a whole number of these."""
    epochs: int = 1
    """How many epochs one pass over `batches` covers."""
    first_epoch: int = 0
    """Epoch that this pass begins with: iterating over `batches` again goes on where the last pass ended."""
    shuffle: bool = True
    """Whether each epoch has its own order, drawn from (seed, epoch)."""
    seed: int = 0
    """Seed of that order."""
    drop_last: bool = False
    """Whether an epoch's last, smaller batch is left out."""
    in_step: bool = False
    """Whether all workers train every batch together (bsp): each is given every shard, and takes its part of it."""
    shard_batches: int = 16
    """Batches a shard: the unit of a lease. Few give fine balance at the tail, many cost fewer leases."""

    endless: bool = False
    """An iterable: where an epoch ends is found by reading; until then `samples` is as many as there are shard numbers.

    Samples are counted as if every batch were full; `data.ledger.async_ledger` learns the end from whoever finds it
    first.
    """

    stream: StreamCard | None = None
    """A stream: its partitions are the shards (`data.ledger.stream_ledger`), and `samples` means nothing."""

    @property
    def shard_size(self) -> int:
        return self.batch_size * self.shard_batches

    @property
    def samples_used(self) -> int:
        """Samples of an epoch that are trained: all, or those in full batches."""
        return self.samples - self.samples % self.batch_size if self.drop_last else self.samples

    @property
    def shards(self) -> int:
        return -(-self.samples_used // self.shard_size)

    @property
    def batches(self) -> int:
        return self.epochs * -(-self.samples_used // self.batch_size)


def check_same(rank: int, card: DatasetCard, known: DatasetCard) -> None:
    """All workers must see the same data: a shard means the same samples to each of them."""
    for each in fields(card):
        mine, theirs = getattr(card, each.name), getattr(known, each.name)
        if mine != theirs:
            raise errors.BadInput(
                f"worker-{rank} shows a data set with {each.name}={mine}, "
                f"other workers one with {each.name}={theirs}; "
                "all workers must read the same data: give each the same files and arguments"
            )
    if card.stream is not None and known.stream is not None:
        check_same_stream(card.stream, known.stream)


def check_same_stream(now: StreamCard, before: StreamCard) -> None:
    """A stream that was made anew has the same URL, and other records at the same offsets."""
    if now.id and before.id and now.id != before.id:
        raise errors.StreamReplaced(
            f"the stream {now.url} was made anew since this job read it: its id is {now.id}, that of what was read is "
            f"{before.id}, so its offsets mean other records. Bring the original back, or begin a new run without "
            "--resume; to keep the model, export it and load it before job.prepare"
        )


class EpochPlace(NamedTuple):
    """Position of a training script in its loops over `batches`."""

    epoch: int
    """The epoch that the script is in, from 0."""
    first: int
    """Loops over `batches` that the script had begun before this epoch."""
    begun: int
    """Loops begun by now; equal to `first` until the epoch's own loop begins."""
    loop: str = ""
    """The `for` statement around the loops over `batches`, as worker/epochs/user_loops.py names it; empty: there is not
    one that all of them are in.
    """

    def is_before(self, other: "EpochPlace") -> bool:
        return self[:3] < other[:3]

    @property
    def boundary(self) -> bool:
        """Whether the epoch has begun, but none of its loops."""
        return self.begun == self.first
