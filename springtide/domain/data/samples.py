"""Pure. Batches, sample ranges, and the description of a data set with which the master leases its shards.

In: the number of samples, counted by data/source.py. Next: data/shards.py cuts shards, worker/input/batches.py yields
batches.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from springtide import errors
from springtide.domain.data.streams import StreamCard


class Batch(NamedTuple):
    """Features and labels of one mini-batch. A batch also unpacks into two values: ``for x, y in batches``."""

    x: Any
    y: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRange:
    """Samples ``first`` to ``first + count`` of a shard, in the shuffled order of its epoch.

    Every process that reads a range gets the same samples. Slots remember the ranges that they have applied, so each
    range is applied once.
    """

    epoch: int
    shard: int
    """Number of the shard, unique in the job over epochs and data sets."""
    first: int
    count: int
    shard_samples: int = 0
    """Number of samples of the whole shard, equal on all workers. 0 means unknown, as for a stream partition. Slots
    store adjacent whole shards as one range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCard:
    """Settings that determine which samples each shard has. Workers with equal cards get identical shards."""

    samples: int
    """Samples per epoch."""
    batch_size: int
    """Samples per step of one worker (async) or of the whole group (bsp). A shard holds a whole number of batches."""
    epochs: int = 1
    """Epochs in one pass over `batches`."""
    first_epoch: int = 0
    """First epoch of this pass. Each further loop over `batches` continues after the last epoch of the previous
    pass.
    """
    shuffle: bool = True
    """True if each epoch has its own order of samples, drawn from (seed, epoch)."""
    seed: int = 0
    """Seed of the shuffle."""
    drop_last: bool = False
    """True if an epoch drops its last batch when that batch is not full."""
    in_step: bool = False
    """True if all workers train every batch together (bsp). Each worker then gets every shard, and trains its part of
    every batch.
    """
    shard_batches: int = 16
    """Batches per shard, which is the unit of a lease. Small shards balance the load better at the end of the data;
    large shards need fewer leases."""

    endless: bool = False
    """True for an iterable data set, whose length is known only after reading it. Until the end is known, `samples`
    covers all possible shard numbers.

    Samples are numbered as if every batch were full. `data.ledger.async_ledger` learns the length from the first
    worker that reaches the end.
    """

    row_groups: int = 0
    """Checksum of the data set's row groups (`data.shards.RowGroups`), which determine the order of an epoch."""

    stream: StreamCard | None = None
    """The stream, if the data set is a stream. The stream's partitions are the shards (`data.ledger.stream_ledger`),
    and `samples` is unused.
    """

    @property
    def shard_size(self) -> int:
        return self.batch_size * self.shard_batches

    @property
    def samples_used(self) -> int:
        """Number of samples of an epoch that are trained: all samples, or with `drop_last` only the samples of full
        batches."""
        return self.samples - self.samples % self.batch_size if self.drop_last else self.samples

    @property
    def shards(self) -> int:
        return -(-self.samples_used // self.shard_size)

    @property
    def batches(self) -> int:
        return self.epochs * -(-self.samples_used // self.batch_size)


def check_same(rank: int, card: DatasetCard, known: DatasetCard, checkpoint: str = "") -> None:
    """Raise BadInput if a worker's data set differs from the known one: the data set of the other workers, or of the
    `checkpoint` from which the run resumes.
    """
    for field in fields(card):
        mine, theirs = getattr(card, field.name), getattr(known, field.name)
        if mine != theirs and checkpoint:
            raise errors.BadInput(
                f"worker-{rank} has a data set with {field.name}={mine}, but {checkpoint}, from which this run "
                f"resumes, was made with {field.name}={theirs}. --resume trains the rest of the same data. To train "
                f"new data with the model of the checkpoint, use --continue-from instead of --resume"
            )
        if mine != theirs:
            raise errors.BadInput(
                f"worker-{rank} has a data set with {field.name}={mine}, but this job trains one with "
                f"{field.name}={theirs}: all workers, also restarted ones, must read the same data. Give each the same "
                f"files and arguments"
            )
    if card.stream is not None and known.stream is not None:
        check_same_stream(card.stream, known.stream)


def refuse_other_mode(rank: int, card: DatasetCard, checkpoint: str) -> None:
    """Raise BadInput because the checkpoint is of the other mode: async or bsp. The modes keep the dense model in
    different tables."""
    now, then = ("bsp", "async") if card.in_step else ("async", "bsp")
    raise errors.BadInput(
        f'worker-{rank} trains with sync="{now}", but {checkpoint}, from which this run continues, was made with '
        f'sync="{then}": train with sync="{then}"'
    )


def check_same_stream(now: StreamCard, before: StreamCard) -> None:
    """Raise StreamReplaced if the stream was recreated after `before` was recorded. A recreated stream has the same URL
    but other records at the same offsets."""
    if now.id and before.id and now.id != before.id:
        raise errors.StreamReplaced(
            f"the stream {now.url} was recreated since this job read it: its id is {now.id}, and was {before.id}, so "
            f"its offsets refer to different records. Restore the original stream. To train the new stream with "
            f"the model of the checkpoint, use --continue-from instead of --resume"
        )


class EpochPlace(NamedTuple):
    """Position of a training script in its loops over `batches`."""

    epoch: int
    """Current epoch of the script, from 0."""
    first: int
    """Number of loops over `batches` that the script began before this epoch."""
    begun: int
    """Number of loops begun so far; equal to `first` until the first loop of this epoch begins."""
    loop: str = ""
    """Position of the outermost `for` statement around all loops over `batches` (worker/epochs/user_loops.py); empty if
    there is none.
    """

    def is_before(self, other: "EpochPlace") -> bool:
        return self[:3] < other[:3]

    @property
    def boundary(self) -> bool:
        """True if the epoch has begun, but none of its loops has begun."""
        return self.begun == self.first
