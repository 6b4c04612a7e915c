"""Pure. One pass over a stream for a bsp group: every rank is given the same stretches of partitions in the same order.

In: data/ledger/job_ledger.py. Out: grants. The sequence is made while records come: when a rank needs more
master/data/leases.py has the fullest partition chosen (`choose`), and what is chosen is journaled (`plan`) before
anyone is given it. A stretch is what a shard is in data/ledger/bsp_ledger.py, and all else is as there: nobody's part
can be trained by another, the group goes back, or on, to one step together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from springtide import errors
from springtide.data.ledger.bsp_ledger import BspLedger, BspLedgerState, BspStreamState, OffsetRange
from springtide.domain.data.leases import Grant, NoLease, Progress, Totals
from springtide.domain.data.streams import MOST_PARTITIONS, PartitionRange

NUMBERS = 2**30  # of a pass: ten stretches a second for three years
KEPT = 4  # stretches behind the slowest rank: a checkpoint may still name the last one


@dataclass(slots=True)
class BspStreamLedger(BspLedger):
    """How far each rank is, and what comes next."""

    starts: dict[int, int] = field(default_factory=dict)
    """By partition, where the job began with it."""
    ends: dict[int, int] = field(default_factory=dict)
    """Where those end that do."""
    places: dict[int, int] = field(default_factory=dict)
    """Up to where each is in the sequence."""
    stretches: dict[int, OffsetRange] = field(default_factory=dict)
    """The sequence, without its beginning."""
    void_of: dict[int, int] = field(default_factory=dict)
    """Of each stretch that a rank is through with: offsets that held nothing to train. All ranks find the same; after a
    return to the middle of a stretch those before that place are not told again."""
    void_before: int = 0
    """Of those that are kept no more."""
    closed: bool = False

    @property
    def numbers(self) -> int:
        """How many shard numbers the pass takes."""
        return NUMBERS

    @property
    def over(self) -> bool:
        """Whether all partitions have ended, and all of them is in the sequence."""
        return bool(self.starts) and all(self.places[one] >= self.ends.get(one, NUMBERS**2) for one in self.starts)

    def close(self) -> None:
        """Nothing new; ranks that are behind still get what another has begun."""
        self.total, self.closed = max(self.leased_to), True
        for running in sorted(self.stretches, reverse=True):
            if running >= self.total:  # nobody has begun it: another run plans it anew
                stretch = self.stretches.pop(running)
                self.places[stretch.partition] = stretch.first

    # ---- what there is of the stream ----

    def news(self, seen: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
        """What of this is not known yet. Changes nothing."""
        if self.over:
            return ()
        return tuple(
            one
            for one in seen
            if 0 <= one.partition < MOST_PARTITIONS
            and (one.partition not in self.starts or (one.final and one.partition not in self.ends))
        )

    def see(self, seen: Iterable[PartitionRange]) -> bool:
        """Partitions, as a reader sees them; as in data/ledger/stream_ledger.py the first word counts. Whether there is
        news.
        """
        news, first = self.news(seen), not self.starts
        for one in news:
            if one.partition not in self.starts:
                earliest = self.card.stream is None or self.card.stream.start == "earliest"
                self.starts[one.partition] = max(0, one.start) if first or earliest else 0
                self.places[one.partition] = self.starts[one.partition]
            if one.final:
                self.ends[one.partition] = max(one.end, self.places[one.partition])
        return bool(news)

    def wants(self, seat: int | None) -> bool:
        """Whether the rank that sits there has had all of the sequence, and it may go on."""
        there = seat is not None and seat < self.workers and self.leased_to[seat] == self.total
        return there and self.boundary is None and not self.closed

    def choose(self, seen: Iterable[PartitionRange], *, lingered: bool) -> tuple[OffsetRange | None, bool]:
        """What should come next: batches of the fullest partition. And whether records wait to become a full one.

        A batch that is not full only when they have `lingered`, or nothing can fill it any more. Changes nothing.
        """
        left = [
            (min(one.end, self.ends.get(one.partition, one.end)) - place, one.partition)
            for one in seen
            if (place := self.places.get(one.partition)) is not None
        ]
        most, partition = max(left, default=(0, 0), key=lambda one: (one[0], -one[1]))
        if most <= 0:
            return None, False
        batch, first = self.card.batch_size, self.places[partition]
        full = min(most // batch, self.card.shard_batches)
        if not full and not lingered and partition not in self.ends:
            return None, True
        return OffsetRange(partition, first, first + (full * batch or most)), False

    def plan(self, seat: int | None, stretch: OffsetRange) -> bool:
        """This comes next. False: not now, or not from there on."""
        place = self.places.get(stretch.partition)
        if not self.wants(seat) or stretch.first != place or stretch.first >= stretch.end:
            return False
        self.stretches[self.total] = stretch
        self.places[stretch.partition] = stretch.end
        self.total += 1
        return True

    # ---- words of ranks ----

    @property
    def smallest(self) -> int:
        """Records of a full batch, of which each rank must have one."""
        return self.card.batch_size

    def check_group(self, workers: int) -> None:
        """BadInput where so many ranks could not share a full batch."""
        if workers > self.card.batch_size:
            raise errors.BadInput(f"{workers} workers cannot share a batch of {self.card.batch_size} records")

    def lease(self, seat: int | None, rank: int) -> tuple[Grant, ...] | NoLease:
        """The rank's next stretch."""
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

    def report(self, seat: int | None, word: Progress) -> bool:
        """A rank's word on its part of a stretch; ranks finish them in order. Whether it is news."""
        if seat is None or seat >= self.workers:
            return False
        running = word.shard - self.base
        stretch = self.stretches.get(running)
        if running < self.done_by[seat] or stretch is None or word.offset < stretch.end:
            return False
        if running != self.done_by[seat] or running >= self.leased_to[seat]:
            raise errors.BadInput(
                f"seat {seat} of the bsp group reports shard {word.shard} as done, but its next one is "
                f"{self.base + self.done_by[seat]}"
            )
        self.done_by[seat] += 1
        known = self.void_of.get(running, 0)
        self.void_of[running] = max(word.void, known)  # one that came in the middle knows of less
        for old in [old for old in self.stretches if old < min(self.done_by) - KEPT]:
            del self.stretches[old]
            self.void_before += self.void_of.pop(old, 0)
        return True

    # ---- what there is to know ----

    @property
    def samples_done(self) -> int:
        """Offsets that every rank has done its part of."""
        done = min(self.done_by)
        planned = sum(place - self.starts[one] for one, place in self.places.items())
        return planned - sum(one.end - one.first for running, one in self.stretches.items() if running >= done)

    @property
    def void(self) -> int:
        """Of these, offsets that held nothing to train."""
        return self._void(min(self.done_by))

    def totals(self) -> Totals:
        """Partitions by state."""
        done, ended = min(self.done_by), len(self.ends) == len(self.starts)
        open_ = {one.partition for running, one in self.stretches.items() if running >= done}
        through = [one for one, end in self.ends.items() if self.places[one] >= end and one not in open_]
        samples = sum(end - self.starts[one] for one, end in self.ends.items()) if ended else 0
        return Totals(
            total=len(self.starts), leased=len(open_), done=len(through), samples=samples,
            samples_done=self.samples_done, void=self.void,
        )  # fmt: skip

    def note(self, shard: int, first: int) -> BspLedgerState:
        """The pass at a step after which all is trained that lies before this offset of this stretch."""
        running = min(shard - self.base, self.total)
        if running < 0 or (shard, first) == (self.base, 0):
            stream = replace(self._stream(dict(self.starts), {}), void=0, void_of={})
            return replace(self._noted(0), total=0, stream=stream)
        stretch = self.stretches.get(running)
        running = max(running + (stretch is not None and first >= stretch.end), min(self.done_by))
        left = {number: one for number, one in self.stretches.items() if number >= running}
        if stretch is not None and running in left and stretch.first < first < stretch.end:
            left[running] = stretch._replace(first=first)
        untrained = sum(one.end - one.first for one in left.values())
        trained = sum(place - self.starts[one] for one, place in self.places.items()) - untrained
        stream = replace(self._stream(dict(self.places), left), void=self._void(running), void_of={})
        return replace(self._noted(running), first=trained, stream=stream)

    @staticmethod
    def at(noted: BspLedgerState, workers: int) -> "BspStreamLedger":
        """A pass that a group of so many goes on with where a checkpoint has noted it."""
        done = min(noted.done_by)
        state = replace(noted, workers=workers, leased_to=(done,) * workers, done_by=(done,) * workers)
        return BspStreamLedger.from_state(state)

    def reopen(self) -> None:
        """Another run goes on: where the stream ends is found out again."""
        self.ends.clear()

    def check(self) -> None:
        """Every invariant; tests call it after each step."""
        BspLedger.check(self)
        assert all(self.starts[one] <= place for one, place in self.places.items()), "before its beginning"
        assert all(self.places[one] <= end for one, end in self.ends.items()), "beyond its end"
        for running in range(min(self.done_by), self.total):
            assert running in self.stretches, "a stretch is lost"
        ends = dict(self.places)
        for _, (partition, first, end) in sorted(self.stretches.items(), reverse=True):
            assert ends[partition] == end and first < end, "stretches of a partition do not join"
            ends[partition] = first

    def to_state(self) -> BspLedgerState:
        """Everything, as plain data."""
        stream = self._stream(dict(self.places), dict(self.stretches))
        return replace(BspLedger.to_state(self), stream=replace(stream, closed=self.closed))

    @staticmethod
    def from_state(state: BspLedgerState) -> "BspStreamLedger":
        """A pass that goes on where that one was."""
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
            starts=dict(self.starts), ends=dict(self.ends), places=places, stretches=stretches,
            void=self.void_before, void_of=dict(self.void_of),
        )  # fmt: skip

    def _void(self, running: int) -> int:
        """Of the sequence before that stretch, as far as ranks have told."""
        return self.void_before + sum(void for number, void in self.void_of.items() if number < running)


def resume_bsp_ledger(noted: BspLedgerState, workers: int) -> BspLedger:
    """The pass of a group, over shards or over a stream, where a checkpoint has noted it."""
    return BspLedger.at(noted, workers) if noted.stream is None else BspStreamLedger.at(noted, workers)


def load_bsp_ledger(state: BspLedgerState) -> BspLedger:
    """The same, where it was."""
    return BspLedger.from_state(state) if state.stream is None else BspStreamLedger.from_state(state)
