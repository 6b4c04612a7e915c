"""Pure. One pass over one data set for a bsp group: every rank gets the same shards in the same order.

In: data/ledger/job_ledger.py. Out: grants. No rank can train another's part, so a lost member returns nothing: its next
incarnation begins with a shard that the group has not finished, and learns from the others how far they are in it. A
checkpoint records a pass at one step (`note`); the whole group goes back to it, or on from it, together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide import errors
from springtide.data import shards
from springtide.domain.data.leases import Grant, NoLease, Progress, Totals
from springtide.domain.data.samples import DatasetCard


class OffsetRange(NamedTuple):
    """Offsets `first` to `end` of a partition: the shard of a group's pass over a stream."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BspStreamState:
    """The extra state of a group's pass over a stream; see data/ledger/bsp_stream_ledger.py."""

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
    """How far each rank of the group is."""

    card: DatasetCard
    base: int
    workers: int
    total: int = field(init=False)
    leased_to: list[int] = field(init=False)
    done_by: list[int] = field(init=False)
    boundary: int | None = None
    """The first shard that is not handed out before the group is formed again."""
    first: int = 0
    """Samples beyond whole shards that were trained when the group continued from a checkpoint."""

    def __post_init__(self) -> None:
        self.total = self.card.epochs * self.card.shards
        self.leased_to = [0] * self.workers
        self.done_by = [0] * self.workers

    @property
    def numbers(self) -> int:
        return self.card.epochs * self.card.shards

    @property
    def over(self) -> bool:
        """True unless closing the job cut something off."""
        return self.total == self.numbers

    def close(self) -> None:
        """Hand out no new shard. Ranks that are behind still get begun shards, or the others would wait forever."""
        self.total = max(self.leased_to)

    def halt(self) -> None:
        """Hand out no shard that nobody has begun: the group changes before it."""
        self.boundary = max(self.leased_to)

    def regroup(self, seats: Sequence[int | None]) -> None:
        """Form the group of ranks that had these seats; new ranks begin with the first shard that is not finished."""
        least = min(self.done_by)
        self.boundary, self.workers = None, len(seats)
        for counts in (self.leased_to, self.done_by):
            counts[:] = [least if seat is None or seat >= len(counts) else counts[seat] for seat in seats]

    @property
    def smallest(self) -> int:
        """Samples of the smallest batch, of which each rank must have one.

        The rest of a shard joins the batch before it, so only a shard of less than a batch is smaller than a batch.
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
        """Start a new incarnation of the rank in this seat: it has done what all others have done."""
        others = [done for other, done in enumerate(self.done_by) if other != seat]
        if others and seat is not None and seat < self.workers:
            self.leased_to[seat] = self.done_by[seat] = min(others)

    def lease(self, seat: int | None, rank: int) -> tuple[Grant, ...] | NoLease:
        """Grant the rank's next shard: one at a time, so that a group that must stop is soon there."""
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
        """Apply a rank's report on its part of a shard; ranks finish shards in order. True if it is news."""
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
        """Shards by state; a shard is done when every rank has done its part."""
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
        """Offsets that held nothing to train: only a stream has any."""
        return 0

    @property
    def samples_done(self) -> int:
        """Samples of the shards of which every rank has done its part."""
        return max(self.first, self._samples(min(self.done_by)))

    def note(self, shard: int, first: int) -> BspLedgerState:
        """The pass at the step after which everything before this sample of this shard is trained."""
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
        """A pass that a group of this size continues where a checkpoint recorded it."""
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
