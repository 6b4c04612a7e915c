"""Pure. Lease ranges of a stream to a bsp group: every rank gets the same offset ranges in the same order.

In: data/ledger/job_ledger.py. Out: grants. The sequence of ranges grows as records arrive. When a rank needs another
range, master/data/leases.py chooses the partition with the most records (`choose`). It journals the choice (`plan`)
before any rank gets the range. A range takes the role of a shard in data/ledger/bsp_ledger.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from springtide import errors
from springtide.data.ledger.bsp_ledger import BspLedger, BspLedgerState, BspStreamState, OffsetRange
from springtide.domain.data.leases import Grant, NoLease, Progress, Totals
from springtide.domain.data.streams import MOST_PARTITIONS, PartitionRange

NUMBERS = 2**30  # shard numbers of a pass: ten ranges a second for three years
KEPT = 4  # ranges kept behind the slowest rank, because a checkpoint may still name the last one


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
            if running >= self.total:  # no rank has begun this range: another run plans it again
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
        """Add partitions from a reader's report; the first report of each partition counts. Return True if something is
        new.
        """
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
        """Append a range to the sequence. Return False if no range is needed, or if it does not continue its
        partition.
        """
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

    def check_group(self, workers: int) -> None:
        if workers > self.card.batch_size:
            raise errors.BadInput(f"{workers} workers cannot share a batch of {self.card.batch_size} records")

    def lease(self, seat: int | None, rank: int) -> tuple[Grant, ...] | NoLease:
        if seat is None or not 0 <= seat < self.workers:
            raise errors.BadInput(f"worker-{rank} is not in the bsp group of {self.workers}")
        running = self.leased_to[seat]
        if running == self.total and (self.closed or self.over):
            return NoLease.END
        if self.boundary is not None and running >= self.boundary:
            return NoLease.REGROUP
        if running == self.total:
            return NoLease.WAIT
        self.leased_to[seat] += 1
        partition, first, end = self.stretches[running]
        return (Grant(self.base + running, 0, partition, first, end),)

    def report(self, seat: int | None, report: Progress) -> bool:
        """Apply a rank's report on its part of a range. Ranks finish ranges in order. Return True if the report is
        new.
        """
        if seat is None or seat >= self.workers:
            return False
        running = report.shard - self.base
        stretch = self.stretches.get(running)
        if running < self.done_by[seat] or stretch is None or report.offset < stretch.end:
            return False
        if running != self.done_by[seat] or running >= self.leased_to[seat]:
            raise errors.BadInput(
                f"seat {seat} of the bsp group reports shard {report.shard} as done, but its next one is "
                f"{self.base + self.done_by[seat]}"
            )
        self.done_by[seat] += 1
        known = self.void_of.get(running, 0)
        self.void_of[running] = max(report.void, known)  # a rank that joined in the middle of the range counts fewer
        for old in [old for old in self.stretches if old < min(self.done_by) - KEPT]:
            del self.stretches[old]
            self.void_before += self.void_of.pop(old, 0)
        return True

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

    @staticmethod
    def at(noted: BspLedgerState, workers: int) -> "BspStreamLedger":
        done = min(noted.done_by)
        state = replace(noted, workers=workers, leased_to=(done,) * workers, done_by=(done,) * workers)
        return BspStreamLedger.from_state(state)

    def reopen(self) -> None:
        """Forget the ends of partitions, because another run finds them again."""
        self.ends.clear()

    def check(self) -> None:
        """Assert every invariant; tests call it after each step."""
        BspLedger.check(self)
        assert all(self.starts[partition] <= place for partition, place in self.places.items()), "before its beginning"
        assert all(self.places[partition] <= end for partition, end in self.ends.items()), "beyond its end"
        for running in range(min(self.done_by), self.total):
            assert running in self.stretches, "a range is lost"
        ends = dict(self.places)
        for _, (partition, first, end) in sorted(self.stretches.items(), reverse=True):
            assert ends[partition] == end and first < end, "ranges of a partition do not join"
            ends[partition] = first

    def to_state(self) -> BspLedgerState:
        stream = self._stream(dict(self.places), dict(self.stretches))
        return replace(BspLedger.to_state(self), stream=replace(stream, closed=self.closed))

    @staticmethod
    def from_state(state: BspLedgerState) -> "BspStreamLedger":
        convoy, kept = BspStreamLedger(state.card, state.base, state.workers), state.stream
        assert kept is not None
        convoy.total, convoy.boundary, convoy.first = state.total, state.boundary, 0
        convoy.leased_to, convoy.done_by = list(state.leased_to), list(state.done_by)
        convoy.starts, convoy.ends, convoy.places = dict(kept.starts), dict(kept.ends), dict(kept.places)
        convoy.stretches, convoy.closed = dict(kept.stretches), kept.closed
        convoy.void_before, convoy.void_of = kept.void, dict(kept.void_of)
        return convoy

    def _noted(self, running: int) -> BspLedgerState:
        return BspLedgerState(
            card=self.card, base=self.base, workers=1, total=self.total, leased_to=(running,), done_by=(running,)
        )

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
    """Return the bsp pass, over shards or a stream, as a checkpoint recorded it."""
    return BspLedger.at(noted, workers) if noted.stream is None else BspStreamLedger.at(noted, workers)


def load_bsp_ledger(state: BspLedgerState) -> BspLedger:
    return BspLedger.from_state(state) if state.stream is None else BspStreamLedger.from_state(state)
