"""Pure. Lease the shards, or the offset ranges of a stream, to a bsp group: every rank gets the same leases in the same
order.

A rank cannot train another rank's part, so a lost rank returns no samples. The rank's next incarnation starts with the
first unfinished shard, and learns its position in that shard from the other ranks. A checkpoint records the state of a
pass after one step (`note`). The group rolls back to this step, or continues from it, as a whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from springtide import errors
from springtide.data import shards
from springtide.domain.data.leases import Grant, NoLease, Progress, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, MOST_PARTITIONS, PartitionRange


class OffsetRange(NamedTuple):
    """Offsets `first` to `end` of a partition. A bsp pass over a stream uses such ranges as shards."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BspStreamState:
    """Additional state of a bsp pass over a stream; see data/ledger/bsp_ledger.py."""

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
        """True if the pass ran to its end; False if the job was closed before the end."""
        return self.total == self.numbers

    def close(self) -> None:
        """Lease no new shard. Slower ranks still get begun shards, else the other ranks would wait forever."""
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
        """Let a new incarnation of this rank start at the first shard that some other rank has not finished."""
        others = [done for other, done in enumerate(self.done_by) if other != seat]
        if others and seat is not None and seat < self.workers:
            self.leased_to[seat] = self.done_by[seat] = min(others)

    def lease(self, seat: int | None, rank: int) -> tuple[Grant, ...] | NoLease:
        """Grant the rank's next shard. Each call grants a single shard, so that the group can stop soon."""
        if seat is None or not 0 <= seat < self.workers:
            raise errors.BadInput(f"worker-{rank} is not in the bsp group of {self.workers}")
        running = self.leased_to[seat]
        if running == self.total and not self._may_grow:
            return NoLease.END
        if self.boundary is not None and running >= self.boundary:
            return NoLease.REGROUP
        if running == self.total:
            return NoLease.WAIT
        self.leased_to[seat] += 1
        return (self._grant(running),)

    def report(self, seat: int | None, report: Progress) -> bool:
        """Apply a rank's report; ranks finish shards in order. Return True if the report is new."""
        if seat is None or seat >= self.workers:
            return False
        running = report.shard - self.base
        if running < self.done_by[seat] or report.offset < self._end_of(running):
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
        return replace(self._noted(done), total=self.numbers, first=trained)

    def _noted(self, done: int) -> BspLedgerState:
        """Return the state of a group that has finished this many shards or ranges; `resume_bsp_ledger` seats it."""
        return BspLedgerState(
            card=self.card, base=self.base, workers=1, total=self.total, leased_to=(done,), done_by=(done,)
        )

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

    @property
    def _may_grow(self) -> bool:
        return False

    def _grant(self, running: int) -> Grant:
        epoch, index = divmod(running, self.card.shards)
        return Grant(self.base + running, self.card.first_epoch + epoch, index, 0, shards.size(self.card, index))

    def _end_of(self, running: int) -> int:
        return shards.size(self.card, running % self.card.shards)

    def _samples(self, running: int) -> int:
        if not self.card.shards:
            return 0
        epoch, index = divmod(running, self.card.shards)
        return epoch * self.card.samples_used + index * self.card.shard_size


NUMBERS = 2**30  # shard numbers of a pass: ten ranges a second for three years
KEPT = 4  # finished ranges that are kept behind the slowest rank, because a checkpoint may still refer to them


@dataclass(slots=True)
class BspStreamLedger(BspLedger):
    """Progress of each rank, and the planned sequence of ranges."""

    starts: dict[int, int] = field(default_factory=dict)
    """First offset of the job in each partition."""
    ends: dict[int, int] = field(default_factory=dict)
    """Final ends of the partitions that have ended."""
    places: dict[int, int] = field(default_factory=dict)
    """End of the planned offsets in each partition."""
    stretches: dict[int, OffsetRange] = field(default_factory=dict)
    """Planned ranges by number, without the oldest."""
    void_of: dict[int, int] = field(default_factory=dict)
    """Number of offsets without a record to train, by finished range. All ranks find the same number.

    After a rollback to the middle of a range, offsets before that point are not counted again.
    """
    void_before: int = 0
    """The same count for ranges that are no longer kept."""
    closed: bool = False

    @property
    def numbers(self) -> int:
        return NUMBERS

    @property
    def over(self) -> bool:
        """True if all partitions have ended and are completely planned."""
        return bool(self.starts) and all(
            self.places[partition] >= self.ends.get(partition, NUMBERS**2) for partition in self.starts
        )

    def close(self) -> None:
        """Plan no further range. Slower ranks still get ranges that another rank has begun."""
        self.total, self.closed = max(self.leased_to), True
        for running in sorted(self.stretches, reverse=True):
            if running >= self.total:  # drop ranges that no rank has begun; another run plans them again
                stretch = self.stretches.pop(running)
                self.places[stretch.partition] = stretch.first

    # ---- the stream ----

    def news(self, seen: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
        """Return the partitions that are not known yet, or whose end is new. Changes nothing."""
        if self.over:
            return ()
        return tuple(
            partition
            for partition in seen
            if 0 <= partition.partition < MOST_PARTITIONS
            and (partition.partition not in self.starts or (partition.final and partition.partition not in self.ends))
        )

    def see(self, seen: Iterable[PartitionRange]) -> bool:
        """Add partitions from a reader's report; the first report on each partition counts. Return True if a partition
        or an end is new."""
        news, first = self.news(seen), not self.starts
        for partition in news:
            if partition.partition not in self.starts:
                earliest = self.card.stream is None or self.card.stream.start == "earliest"
                self.starts[partition.partition] = max(0, partition.start) if first or earliest else 0
                self.places[partition.partition] = self.starts[partition.partition]
            if partition.final:
                self.ends[partition.partition] = max(partition.end, self.places[partition.partition])
        return bool(news)

    def wants(self, seat: int | None) -> bool:
        """Return True if the rank in this seat has leased all planned ranges, and more may follow."""
        there = seat is not None and seat < self.workers and self.leased_to[seat] == self.total
        return there and self.boundary is None and not self.closed

    def choose(self, seen: Iterable[PartitionRange], *, lingered: bool) -> tuple[OffsetRange | None, bool]:
        """Choose the next range: batches of the partition with the most records. Changes nothing.

        Also return True if records wait to fill a batch. A partial batch is chosen only after records have `lingered`,
        or if the partition has ended.
        """
        left = [
            (min(partition.end, self.ends.get(partition.partition, partition.end)) - place, partition.partition)
            for partition in seen
            if (place := self.places.get(partition.partition)) is not None
        ]
        most, partition = max(left, default=(0, 0), key=lambda partition: (partition[0], -partition[1]))
        if most <= 0:
            return None, False
        batch, first = self.card.batch_size, self.places[partition]
        full = min(most // batch, self.card.shard_batches)
        if not full and not lingered and partition not in self.ends:
            return None, True
        return OffsetRange(partition, first, first + (full * batch or most)), False

    def plan(self, seat: int | None, stretch: OffsetRange) -> bool:
        """Append a range. Return False if none is needed, or if it does not continue its partition."""
        place = self.places.get(stretch.partition)
        if not self.wants(seat) or stretch.first != place or stretch.first >= stretch.end:
            return False
        self.stretches[self.total] = stretch
        self.places[stretch.partition] = stretch.end
        self.total += 1
        return True

    # ---- requests of ranks ----

    @property
    def smallest(self) -> int:
        """Records of a full batch, which limits the number of ranks."""
        return self.card.batch_size

    def report(self, seat: int | None, report: Progress) -> bool:
        if not BspLedger.report(self, seat, report):
            return False
        running = report.shard - self.base
        known = self.void_of.get(running, 0)
        # take the largest count: a rank that joined in the middle of the range counts fewer
        self.void_of[running] = max(report.void, known)
        for old in [old for old in self.stretches if old < min(self.done_by) - KEPT]:
            del self.stretches[old]
            self.void_before += self.void_of.pop(old, 0)
        return True

    @property
    def _may_grow(self) -> bool:
        return not (self.closed or self.over)

    def _grant(self, running: int) -> Grant:
        partition, first, end = self.stretches[running]
        return Grant(self.base + running, 0, partition, first, end)

    def _end_of(self, running: int) -> int:
        return self.stretches[running].end if running in self.stretches else FAR

    # ---- queries ----

    @property
    def samples_done(self) -> int:
        """Offsets that all ranks have finished."""
        done = min(self.done_by)
        planned = sum(place - self.starts[partition] for partition, place in self.places.items())
        return planned - sum(span.end - span.first for running, span in self.stretches.items() if running >= done)

    @property
    def void(self) -> int:
        return self._void(min(self.done_by))

    def totals(self) -> Totals:
        """Return the partitions by state."""
        done, ended = min(self.done_by), len(self.ends) == len(self.starts)
        unfinished = {span.partition for running, span in self.stretches.items() if running >= done}
        through = [
            partition
            for partition, end in self.ends.items()
            if self.places[partition] >= end and partition not in unfinished
        ]
        samples = sum(end - self.starts[partition] for partition, end in self.ends.items()) if ended else 0
        return Totals(
            total=len(self.starts),
            leased=len(unfinished),
            done=len(through),
            samples=samples,
            samples_done=self.samples_done,
            void=self.void,
        )

    def note(self, shard: int, first: int) -> BspLedgerState:
        """Return the state of the pass after all offsets before this offset of this range are trained."""
        running = min(shard - self.base, self.total)
        if running < 0 or (shard, first) == (self.base, 0):
            stream = replace(self._stream(dict(self.starts), {}), void=0, void_of={})
            return replace(self._noted(0), total=0, stream=stream)
        stretch = self.stretches.get(running)
        running = max(running + (stretch is not None and first >= stretch.end), min(self.done_by))
        left = {number: span for number, span in self.stretches.items() if number >= running}
        if stretch is not None and running in left and stretch.first < first < stretch.end:
            left[running] = stretch._replace(first=first)
        untrained = sum(span.end - span.first for span in left.values())
        trained = sum(place - self.starts[partition] for partition, place in self.places.items()) - untrained
        stream = replace(self._stream(dict(self.places), left), void=self._void(running), void_of={})
        return replace(self._noted(running), first=trained, stream=stream)

    def reopen(self) -> None:
        """Forget the ends of partitions, because another run finds them again."""
        self.ends.clear()

    def to_state(self) -> BspLedgerState:
        stream = self._stream(dict(self.places), dict(self.stretches))
        return replace(BspLedger.to_state(self), stream=replace(stream, closed=self.closed))

    def _stream(self, places: dict[int, int], stretches: dict[int, OffsetRange]) -> BspStreamState:
        return BspStreamState(
            starts=dict(self.starts),
            ends=dict(self.ends),
            places=places,
            stretches=stretches,
            void=self.void_before,
            void_of=dict(self.void_of),
        )

    def _void(self, running: int) -> int:
        """Return the number of void offsets before this range, as far as ranks have reported."""
        return self.void_before + sum(void for number, void in self.void_of.items() if number < running)


def resume_bsp_ledger(noted: BspLedgerState, workers: int) -> BspLedger:
    """Return the bsp pass, over shards or a stream, for a group of this size, as a checkpoint recorded it."""
    done = (min(noted.done_by),) * workers
    return load_bsp_ledger(replace(noted, workers=workers, leased_to=done, done_by=done))


def load_bsp_ledger(state: BspLedgerState) -> BspLedger:
    ledger = (BspLedger if state.stream is None else BspStreamLedger)(state.card, state.base, state.workers)
    ledger.total, ledger.boundary, ledger.first = state.total, state.boundary, state.first
    ledger.leased_to, ledger.done_by = list(state.leased_to), list(state.done_by)
    if state.stream is not None and isinstance(ledger, BspStreamLedger):
        kept = state.stream
        ledger.starts, ledger.ends, ledger.places = dict(kept.starts), dict(kept.ends), dict(kept.places)
        ledger.stretches, ledger.closed = dict(kept.stretches), kept.closed
        ledger.void_before, ledger.void_of = kept.void, dict(kept.void_of)
    return ledger
