"""Pure. Lease the shards of a pass to a bsp group: every rank gets the same shards in the same order.

In: data/ledger/job_ledger.py. Out: grants. A rank cannot train another rank's part, so a lost rank returns no samples.
Its next incarnation starts with the first unfinished shard, and the other ranks tell it their position in that shard. A
checkpoint records a pass at a single step (`note`). The whole group rolls back to this step, or continues from it,
together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide import errors
from springtide.data import shards
from springtide.domain.data.leases import Grant, NoLease, Progress, Totals
from springtide.domain.data.samples import DatasetCard


class OffsetRange(NamedTuple):
    """Offsets `first` to `end` of a partition. A bsp pass over a stream uses such ranges as shards."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BspStreamState:
    """Additional state of a bsp pass over a stream; see data/ledger/bsp_stream_ledger.py."""

    starts: dict[int, int]
    ends: dict[int, int]
    places: dict[int, int]
    stretches: dict[int, OffsetRange]
    closed: bool = False
    void: int = 0
    void_of: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BspLedgerState:
    """A `BspLedger` as plain data."""

    card: DatasetCard
    base: int
    workers: int
    total: int
    leased_to: tuple[int, ...]
    done_by: tuple[int, ...]
    boundary: int | None = None
    first: int = 0
    stream: BspStreamState | None = None


@dataclass(slots=True)
class BspLedger:
    """Progress of each rank of the group."""

    card: DatasetCard
    base: int
    workers: int
    total: int = field(init=False)
    leased_to: list[int] = field(init=False)
    done_by: list[int] = field(init=False)
    boundary: int | None = None
    """First shard that is not leased before the group is formed again."""
    first: int = 0
    """Samples that were trained when the group resumed from a checkpoint, including a partial shard."""

    def __post_init__(self) -> None:
        self.total = self.card.epochs * self.card.shards
        self.leased_to = [0] * self.workers
        self.done_by = [0] * self.workers

    @property
    def numbers(self) -> int:
        return self.card.epochs * self.card.shards

    @property
    def over(self) -> bool:
        """True unless the job was closed before the end of the pass."""
        return self.total == self.numbers

    def close(self) -> None:
        """Lease no new shard. Slower ranks still get shards that another rank has begun, else the other ranks would
        wait forever.
        """
        self.total = max(self.leased_to)

    def halt(self) -> None:
        """Lease no further new shard, because the group will change first."""
        self.boundary = max(self.leased_to)

    def regroup(self, seats: Sequence[int | None]) -> None:
        """Form a group from ranks with these former seats. New ranks start with the first unfinished shard."""
        least = min(self.done_by)
        self.boundary, self.workers = None, len(seats)
        for counts in (self.leased_to, self.done_by):
            counts[:] = [least if seat is None or seat >= len(counts) else counts[seat] for seat in seats]

    @property
    def smallest(self) -> int:
        """Samples of the smallest batch, which limits the number of ranks.

        The remainder of a shard joins the batch before it. Only a shard with less than a batch gives a smaller batch.
        """
        card = self.card
        return min(card.batch_size, card.samples_used % card.shard_size or card.shard_size)

    def check_group(self, workers: int) -> None:
        """Raise BadInput if this many ranks cannot share every batch."""
        if workers > self.smallest:
            raise errors.BadInput(
                f"{workers} workers cannot share a batch of {self.smallest} samples, which is the smallest that the "
                "bsp group has to train"
            )

    def rejoin(self, seat: int | None) -> None:
        """Start a new incarnation of the rank in this seat, at the first shard that some other rank has not
        finished.
        """
        others = [done for other, done in enumerate(self.done_by) if other != seat]
        if others and seat is not None and seat < self.workers:
            self.leased_to[seat] = self.done_by[seat] = min(others)

    def lease(self, seat: int | None, rank: int) -> tuple[Grant, ...] | NoLease:
        """Grant the rank's next shard. Each call grants a single shard, so that the group can stop soon."""
        if seat is None or not 0 <= seat < self.workers:
            raise errors.BadInput(f"worker-{rank} is not in the bsp group of {self.workers}")
        running = self.leased_to[seat]
        if running == self.total:
            return NoLease.END
        if self.boundary is not None and running >= self.boundary:
            return NoLease.REGROUP
        self.leased_to[seat] += 1
        epoch, index = divmod(running, self.card.shards)
        size = shards.size(self.card, index)
        return (Grant(self.base + running, self.card.first_epoch + epoch, index, 0, size),)

    def report(self, seat: int | None, report: Progress) -> bool:
        """Apply a rank's report on its part of a shard. Ranks finish shards in order. Return True if the report is
        new.
        """
        if seat is None or seat >= self.workers:
            return False
        running = report.shard - self.base
        if running < self.done_by[seat] or report.offset < shards.size(self.card, running % self.card.shards):
            return False
        if running != self.done_by[seat] or running >= self.leased_to[seat]:
            following = self.base + self.done_by[seat]
            raise errors.BadInput(
                f"seat {seat} of the bsp group reports shard {report.shard} as done, but its next one is {following}"
            )
        self.done_by[seat] += 1
        return True

    def totals(self) -> Totals:
        """Return the shards by state. A shard is done when every rank has trained its part."""
        done = min(self.done_by)
        return Totals(
            total=self.total,
            leased=max(self.leased_to) - done,
            done=done,
            samples=self.card.epochs * self.card.samples_used,
            samples_done=self.samples_done,
        )

    @property
    def void(self) -> int:
        """Number of offsets without a record to train; always 0 without a stream."""
        return 0

    @property
    def samples_done(self) -> int:
        """Samples of shards that all ranks have finished."""
        return max(self.first, self._samples(min(self.done_by)))

    def note(self, shard: int, first: int) -> BspLedgerState:
        """Return the state of the pass after all samples before this sample of this shard are trained."""
        done = min(max(0, shard - self.base), self.numbers)
        trained = self._samples(done)
        if done < self.numbers and shard >= self.base:
            trained += first
            done += first >= shards.size(self.card, done % self.card.shards)
        return BspLedgerState(
            card=self.card,
            base=self.base,
            workers=1,
            total=self.numbers,
            leased_to=(done,),
            done_by=(done,),
            first=trained,
        )

    @staticmethod
    def at(noted: BspLedgerState, workers: int) -> "BspLedger":
        """Return the pass for a group of this size, continued from a checkpoint."""
        lockstep = BspLedger(noted.card, noted.base, workers)
        lockstep.first = noted.first
        lockstep.leased_to = [min(noted.done_by)] * workers
        lockstep.done_by = list(lockstep.leased_to)
        return lockstep

    def check(self) -> None:
        """Assert every invariant; tests call it after each step."""
        for done, leased in zip(self.done_by, self.leased_to, strict=True):
            assert 0 <= done <= leased <= self.total, "a rank has done what it was not given"

    def to_state(self) -> BspLedgerState:
        return BspLedgerState(
            card=self.card,
            base=self.base,
            workers=self.workers,
            total=self.total,
            leased_to=tuple(self.leased_to),
            done_by=tuple(self.done_by),
            boundary=self.boundary,
            first=self.first,
        )

    @staticmethod
    def from_state(state: BspLedgerState) -> "BspLedger":
        lockstep = BspLedger(state.card, state.base, state.workers)
        lockstep.total, lockstep.boundary, lockstep.first = state.total, state.boundary, state.first
        lockstep.leased_to, lockstep.done_by = list(state.leased_to), list(state.done_by)
        return lockstep

    def _samples(self, running: int) -> int:
        if not self.card.shards:
            return 0
        epoch, index = divmod(running, self.card.shards)
        return epoch * self.card.samples_used + index * self.card.shard_size
