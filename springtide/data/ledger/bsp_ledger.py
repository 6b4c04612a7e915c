"""Pure. Leases the shards, or the offset ranges of a stream, to a bsp group: all ranks get the same leases in the same
order.

A rank cannot train another rank's part, so a lost rank returns no samples. The rank's next incarnation starts with the
first unfinished shard, and learns its position in that shard from the other ranks. A checkpoint records the state of a
pass after one step (`note`). The whole group rolls back to this step after a loss, or a later run continues from this
step.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from springtide import errors
from springtide.data import shards
from springtide.domain.data.leases import Grant, LeaseKey, NoLease, Progress, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, MOST_PARTITIONS, PartitionRange


class OffsetRange(NamedTuple):
    """Offsets `first` to `end` of a partition. A bsp pass over a stream uses such ranges as shards."""

    partition: int
    first: int
    end: int


@dataclass(slots=True, kw_only=True)
class BspStreamPlan:
    """The sequence of ranges of a bsp pass over a stream."""

    starts: dict[int, int] = field(default_factory=dict)
    """First offset of the job in each partition."""
    ends: dict[int, int] = field(default_factory=dict)
    """Final ends of the partitions that have ended."""
    places: dict[int, int] = field(default_factory=dict)
    """End of the planned offsets in each partition."""
    stretches: dict[int, OffsetRange] = field(default_factory=dict)
    """Planned ranges by number; the oldest ranges are dropped."""
    closed: bool = False
    void: int = 0
    """Number of offsets without a record to train, in ranges that are no longer kept."""
    void_of: dict[int, int] = field(default_factory=dict)
    """Number of offsets without a record to train, by finished range. All ranks report the same number.

    After a rollback to the middle of a range, offsets before that point are not counted a second time.
    """

    def trained(self, left: Iterable[OffsetRange]) -> int:
        """Return the number of planned offsets, without the ranges that are left to train."""
        planned = sum(place - self.starts[partition] for partition, place in self.places.items())
        return planned - sum(span.end - span.first for span in left)


@dataclass(slots=True, kw_only=True)
class BspLedger:
    """Progress of each rank of the group. Snapshots and checkpoints store this object unchanged."""

    card: DatasetCard
    base: int
    workers: int
    total: int
    leased_to: list[int]
    done_by: list[int]
    boundary: int | None = None
    """First shard that the group does not get before it is formed again."""
    first: int = 0
    """Samples that were trained when the group resumed from a checkpoint, including the samples of a partial shard."""
    stream: BspStreamPlan | None = None

    @property
    def numbers(self) -> int:
        return self.card.epochs * self.card.shards

    @property
    def over(self) -> bool:
        """True if the pass has reached its end; False if the job was closed earlier."""
        return self.total == self.numbers

    def close(self) -> None:
        """Lease no new shard. Slower ranks still get the shards that faster ranks have begun, because the faster ranks
        would otherwise wait forever.
        """
        self.total = max(self.leased_to)

    def halt(self) -> None:
        """Lease no further new shard until the group has changed."""
        self.boundary = max(self.leased_to)

    def regroup(self, seats: Sequence[int | None]) -> None:
        """Form a group from ranks with these former seats. None stands for a new rank. New ranks start with the first
        unfinished shard."""
        least = min(self.done_by)
        self.boundary, self.workers = None, len(seats)
        for counts in (self.leased_to, self.done_by):
            counts[:] = [least if seat is None or seat >= len(counts) else counts[seat] for seat in seats]

    @property
    def smallest(self) -> int:
        """Samples of the smallest batch, which limits the number of ranks.

        The remainder of a shard joins the previous batch. A batch is smaller than `batch_size` only if its whole shard
        has fewer samples.
        """
        card = self.card
        return min(card.batch_size, card.samples_used % card.shard_size or card.shard_size)

    def check_group(self, workers: int) -> None:
        """Raise BadInput if some batch is too small for this many ranks."""
        if workers > self.smallest:
            raise errors.BadInput(
                f"{workers} workers cannot share a batch of {self.smallest} samples, which is the smallest "
                "batch of the bsp group's data"
            )

    def rejoin(self, seat: int | None) -> None:
        """Let a new incarnation of this rank start at the first shard that some other rank has not finished."""
        others = [done for other, done in enumerate(self.done_by) if other != seat]
        if others and seat is not None and seat < self.workers:
            self.leased_to[seat] = self.done_by[seat] = min(others)

    def lease(
        self, seat: int | None, rank: int, known: Collection[LeaseKey] | None = None
    ) -> tuple[Grant, ...] | NoLease:
        """Grant the rank's next shard. Each call grants a single shard, so that the group can stop soon.

        `known`: all leases that the rank has received. If the rank holds a lease that is not in `known`, grant this
            lease again, because the reply with it was lost.
        """
        if seat is None or not 0 <= seat < self.workers:
            raise errors.BadInput(f"worker-{rank} is not in the bsp group of {self.workers}")
        held = range(self.done_by[seat], self.leased_to[seat]) if known is not None else ()
        for again in map(self._grant, held):
            if (again.shard, again.first) not in (known or ()):
                return (again,)
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
        """Apply a rank's report. Ranks finish shards in order. Return True if the report is new."""
        if seat is None or seat >= self.workers:
            return False
        running = report.shard - self.base
        if running < self.done_by[seat] or report.offset < self._end_of(running):
            return False
        if running != self.done_by[seat] or running >= self.leased_to[seat]:
            following = self.base + self.done_by[seat]
            raise errors.BadInput(
                f"seat {seat} of the bsp group reports shard {report.shard} as done, but its next shard is {following}"
            )
        self.done_by[seat] += 1
        return True

    def shard_states(self) -> str:
        done, begun = min(self.done_by), max(self.leased_to)
        return "d" * done + "l" * (begun - done) + "p" * (self.numbers - begun)

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
        """Number of samples in shards that all ranks have finished."""
        return max(self.first, self._samples(min(self.done_by)))

    def note(self, shard: int, first: int) -> "BspLedger":
        """Return the state of the pass in which all samples before this sample of this shard are trained."""
        done = min(max(0, shard - self.base), self.numbers)
        trained = self._samples(done)
        if done < self.numbers and shard >= self.base:
            trained += first
            done += first >= shards.size(self.card, done % self.card.shards)
        return replace(self._finished_part(done), total=self.numbers, first=trained)

    def _finished_part(self, done: int) -> "BspLedger":
        """Return the state of a group that has finished this many shards or ranges. `resume_bsp_ledger` assigns its
        seats."""
        return BspLedger(card=self.card, base=self.base, workers=1, total=self.total, leased_to=[done], done_by=[done])

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


NUMBERS = 2**30  # shard numbers of a pass; enough for ten ranges a second for three years
KEPT = 4  # number of finished ranges to keep behind the slowest rank, because a checkpoint may still refer to them


@dataclass(slots=True, kw_only=True)
class BspStreamLedger(BspLedger):
    """Progress of each rank over the planned sequence of ranges."""

    stream: BspStreamPlan = field(default_factory=BspStreamPlan)

    @property
    def numbers(self) -> int:
        return NUMBERS

    @property
    def over(self) -> bool:
        """True if all partitions have ended and are completely planned."""
        return bool(self.stream.starts) and all(
            self.stream.places[partition] >= self.stream.ends.get(partition, NUMBERS**2)
            for partition in self.stream.starts
        )

    def close(self) -> None:
        """Plan no further range. Slower ranks still get ranges that another rank has begun."""
        self.total, self.stream.closed = max(self.leased_to), True
        for running in sorted(self.stream.stretches, reverse=True):
            if running >= self.total:  # drop ranges that no rank has begun, because another run plans them again
                stretch = self.stream.stretches.pop(running)
                self.stream.places[stretch.partition] = stretch.first

    # ---- the stream ----

    def news(self, seen: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
        """Return the partitions that are new to the ledger, or that have a new end. Changes nothing."""
        if self.over:
            return ()
        starts, ends = self.stream.starts, self.stream.ends
        return tuple(
            partition
            for partition in seen
            if 0 <= partition.partition < MOST_PARTITIONS
            and (partition.partition not in starts or (partition.final and partition.partition not in ends))
        )

    def see(self, seen: Iterable[PartitionRange]) -> bool:
        """Add the partitions of a reader's report. Of several reports on a partition, the first counts. Return True if
        a partition or an end is new."""
        plan, news, first = self.stream, self.news(seen), not self.stream.starts
        for partition in news:
            if partition.partition not in plan.starts:
                earliest = self.card.stream is None or self.card.stream.start == "earliest"
                plan.starts[partition.partition] = max(0, partition.start) if first or earliest else 0
                plan.places[partition.partition] = plan.starts[partition.partition]
            if partition.final:
                plan.ends[partition.partition] = max(partition.end, plan.places[partition.partition])
        return bool(news)

    def wants(self, seat: int | None) -> bool:
        """Return True if the rank in this seat has leased all planned ranges, and the stream may continue."""
        there = seat is not None and seat < self.workers and self.leased_to[seat] == self.total
        return there and self.boundary is None and not self.stream.closed

    def choose(self, seen: Iterable[PartitionRange], *, lingered: bool) -> tuple[OffsetRange | None, bool]:
        """Choose the next range: batches of the partition with the most untrained records. Changes nothing.

        Also return True if records wait to fill a batch. A partial batch is chosen only after records have `lingered`,
        or if the partition has ended.
        """
        places, ends = self.stream.places, self.stream.ends
        left = [
            (min(partition.end, ends.get(partition.partition, partition.end)) - place, partition.partition)
            for partition in seen
            if (place := places.get(partition.partition)) is not None
        ]
        most, partition = max(left, default=(0, 0), key=lambda partition: (partition[0], -partition[1]))
        if most <= 0:
            return None, False
        batch, first = self.card.batch_size, places[partition]
        full = min(most // batch, self.card.shard_batches)
        if not full and not lingered and partition not in ends:
            return None, True
        return OffsetRange(partition, first, first + (full * batch or most)), False

    def plan(self, seat: int | None, stretch: OffsetRange) -> bool:
        """Append a range. Return False if the ledger needs no such range, or if the range does not continue its
        partition.
        """
        place = self.stream.places.get(stretch.partition)
        if not self.wants(seat) or stretch.first != place or stretch.first >= stretch.end:
            return False
        self.stream.stretches[self.total] = stretch
        self.stream.places[stretch.partition] = stretch.end
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
        plan, running = self.stream, report.shard - self.base
        # take the largest count, because a rank that joined in the middle of the range counts fewer records
        plan.void_of[running] = max(report.void, plan.void_of.get(running, 0))
        for old in [old for old in plan.stretches if old < min(self.done_by) - KEPT]:
            del plan.stretches[old]
            plan.void += plan.void_of.pop(old, 0)
        return True

    @property
    def _may_grow(self) -> bool:
        return not (self.stream.closed or self.over)

    def _grant(self, running: int) -> Grant:
        partition, first, end = self.stream.stretches[running]
        return Grant(self.base + running, 0, partition, first, end)

    def _end_of(self, running: int) -> int:
        return self.stream.stretches[running].end if running in self.stream.stretches else FAR

    # ---- queries ----

    @property
    def samples_done(self) -> int:
        """Offsets that all ranks have finished."""
        done = min(self.done_by)
        return self.stream.trained(span for running, span in self.stream.stretches.items() if running >= done)

    @property
    def void(self) -> int:
        return self._void(min(self.done_by))

    def totals(self) -> Totals:
        """Return the partitions by state."""
        plan, done = self.stream, min(self.done_by)
        unfinished = {span.partition for running, span in plan.stretches.items() if running >= done}
        through = [
            partition
            for partition, end in plan.ends.items()
            if plan.places[partition] >= end and partition not in unfinished
        ]
        ended = len(plan.ends) == len(plan.starts)
        return Totals(
            total=len(plan.starts),
            leased=len(unfinished),
            done=len(through),
            samples=sum(end - plan.starts[partition] for partition, end in plan.ends.items()) if ended else 0,
            samples_done=self.samples_done,
            void=self.void,
        )

    def note(self, shard: int, first: int) -> BspLedger:
        """Return the state of the pass in which all offsets before this offset of this range are trained."""
        running, plan = (
            min(shard - self.base, self.total),
            replace(copy.deepcopy(self.stream), closed=False, void_of={}),
        )
        if running < 0 or (shard, first) == (self.base, 0):
            plan.places, plan.stretches, plan.void = dict(plan.starts), {}, 0
            return replace(self._finished_part(0), total=0, stream=plan)
        stretch = plan.stretches.get(running)
        running = max(running + (stretch is not None and first >= stretch.end), min(self.done_by))
        plan.stretches = {number: span for number, span in plan.stretches.items() if number >= running}
        if stretch is not None and running in plan.stretches and stretch.first < first < stretch.end:
            plan.stretches[running] = stretch._replace(first=first)
        plan.void = self._void(running)
        return replace(self._finished_part(running), first=plan.trained(plan.stretches.values()), stream=plan)

    def reopen(self) -> None:
        """Forget the ends of partitions, because the next run asks for them again."""
        self.stream.ends.clear()

    def _void(self, running: int) -> int:
        """Return the number of offsets without a record before this range, as far as ranks have reported."""
        return self.stream.void + sum(void for number, void in self.stream.void_of.items() if number < running)


def open_bsp_ledger(card: DatasetCard, base: int, workers: int) -> BspLedger:
    """Begin a bsp pass, over shards or a stream."""
    kind = BspLedger if card.stream is None else BspStreamLedger
    none = [0] * workers
    total = card.epochs * card.shards
    return kind(card=card, base=base, workers=workers, total=total, leased_to=none, done_by=list(none))


def resume_bsp_ledger(noted: BspLedger, workers: int) -> BspLedger:
    """Return a bsp pass as a checkpoint recorded it, for a group of this size."""
    done = min(noted.done_by)
    return load_bsp_ledger(replace(noted, workers=workers, leased_to=[done] * workers, done_by=[done] * workers))


def load_bsp_ledger(kept: BspLedger) -> BspLedger:
    """Return a copy of a pass that was read from a checkpoint or snapshot."""
    return _copied(kept, BspLedger if kept.stream is None else BspStreamLedger)


def plain_data(ledger: BspLedger) -> BspLedger:
    """Return a copy of a pass, to store in a checkpoint or snapshot."""
    return _copied(ledger, BspLedger)


def _copied(ledger: BspLedger, kind: type[BspLedger]) -> BspLedger:
    return kind(**{field.name: copy.deepcopy(getattr(ledger, field.name)) for field in fields(ledger)})
