"""Pure. One pass over a stream: its partitions are shards without an end, leased to workers as a whole.

In: data/ledger/job_ledger.py asks for leases and passes the words of their holders on; partitions are made known by
whoever reads them (`see`), and meant for ranks by data/partition_assign.py (`assign`). Out: grants, verdicts. A lease
ends when its holder is asked to (`wish`): it trains what it has begun, the rest goes to another rank. Nothing stops
meanwhile.

Which offsets make a batch must be the same for everyone who reads them. Full batches end at multiples of the batch
size; where records come too slowly to fill one the holder asks for a `cut`, and trains only when it is noted here.
Like data/ledger/async_ledger.py: the clock is an argument, and a journal of calls can be replayed.
"""

import bisect
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from springtide.data.ledger.async_ledger import NOT_HELD, ReportEffect, ShardLease
from springtide.domain.data.leases import (
    Grant,
    LeaseHolder,
    LeaseKey,
    NoLease,
    Poisoned,
    Progress,
    ReadFailure,
    ShrinkRequest,
    Totals,
)
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, MOST_PARTITIONS, BatchCut, PartitionRange


class Span(NamedTuple):
    """Offsets `first` to `end`."""

    first: int
    end: int


@dataclass(slots=True)
class Partition:
    """One partition."""

    start: int
    """Where the job began with it."""
    end: int = FAR
    """Where it ends, once that is known."""
    waiting: list[Span] = field(default_factory=list)
    """What nobody holds: ascending, no two side by side."""
    cuts: list[int] = field(default_factory=list)
    """Where batches end that are not full, ascending."""
    owner: int | None = None
    """The rank that it is meant for; None: whoever has room."""
    failed_at: int = -1
    """Offset that could not be read last, and how often."""
    tries: int = 0

    @property
    def final(self) -> bool:
        """Whether its end is known."""
        return self.end < FAR

    def put_back(self, span: Span) -> None:
        """These offsets are to be handed out again."""
        if span.first < span.end:
            self.waiting = join_spans([*self.waiting, span])

    def end_at(self, end: int) -> None:
        """Nothing comes after `end`: what lies beyond was never there."""
        self.end = end
        self.waiting = [Span(first, min(until, end)) for first, until in self.waiting if first < end]

    def cut(self, at: int) -> bool:
        """A batch ends before `at`. Whether that is news."""
        place = bisect.bisect_left(self.cuts, at)
        if place < len(self.cuts) and self.cuts[place] == at:
            return False
        self.cuts.insert(place, at)
        return True

    def cuts_in(self, first: int, end: int) -> list[int]:
        """Cuts after `first` and before `end`."""
        return self.cuts[bisect.bisect_right(self.cuts, first) : bisect.bisect_left(self.cuts, end)]

    def forget(self, below: int) -> bool:
        """Nobody will ever read what lies before this offset again. Whether a cut is forgotten."""
        gone = bisect.bisect_right(self.cuts, below)
        del self.cuts[:gone]
        return gone > 0

    def batch_end(self, first: int, batch_size: int) -> int:
        """Where the batch ends that begins with this offset."""
        full = (first // batch_size + 1) * batch_size
        cuts = self.cuts_in(first, full)
        return min(self.end, cuts[0] if cuts else full)

    def copy(self) -> "Partition":
        """One that goes its own way."""
        return Partition(
            self.start, self.end, list(self.waiting), list(self.cuts), self.owner, self.failed_at, self.tries
        )


def join_spans(spans: Iterable[Span]) -> list[Span]:
    """The same offsets in ascending spans, no two of them side by side."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1].end:
            found[-1] = Span(found[-1].first, max(end, found[-1].end))
        elif first < end:
            found.append(Span(first, end))
    return found


MOST_GRANTS = 256  # of one call: the rest comes with the next
MOST_CUTS = 64  # of a partition: with more, a job without checkpoints looks which it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLedgerState:
    """A pass over a stream as plain data."""

    card: DatasetCard
    base: int
    closed: bool
    partitions: dict[int, Partition]
    leases: tuple[ShardLease, ...]
    samples_done: int
    poisoned: tuple[Poisoned, ...]
    floors: tuple[dict[int, int], ...] = ()
    returns: bool = True
    void: int = 0


@dataclass(slots=True)
class StreamLedger:
    """Who trains which partition, and how far each is."""

    card: DatasetCard
    base: int
    max_failures: int = 3
    partitions: dict[int, Partition] = field(default_factory=dict)
    leases: dict[LeaseKey, ShardLease] = field(default_factory=dict)
    held: dict[int, dict[LeaseKey, ShardLease]] = field(default_factory=dict)
    """The same by rank; a rank has one incarnation at a time."""
    waiting: set[int] = field(default_factory=set)
    """Partitions of which a part is nobody's."""
    samples_done: int = 0
    """Offsets that were trained, or found to hold nothing to train."""
    void: int = 0
    """The latter."""
    poisoned: list[Poisoned] = field(default_factory=list)
    closed: bool = False
    floors: list[dict[int, int]] = field(default_factory=list)
    """By partition, what the last complete checkpoints have as trained: the oldest of them says which cuts can go."""
    returns: bool = True
    """Whether what is trained may have to be trained again: not in a job that has no checkpoint to go back to."""
    numbers: int = MOST_PARTITIONS
    """How many shard numbers the pass takes."""

    def close(self) -> None:
        """Hand out nothing more."""
        self.closed = True

    # ---- words of workers ----

    def news(self, seen: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
        """What of this is not known yet. Changes nothing."""
        if self.over:
            return ()
        return tuple(
            one
            for one in seen
            if 0 <= one.partition < self.numbers
            and ((known := self.partitions.get(one.partition)) is None or (one.final and not known.final))
        )

    def see(self, seen: Iterable[PartitionRange]) -> bool:
        """Partitions, as one of their readers sees them; whether there is news. The first word on each counts.

        Those that come later were added to the stream: all their records are to be trained.
        """
        news, first = self.news(seen), not self.partitions
        for one in news:
            known = self.partitions.get(one.partition)
            if known is None:
                earliest = self.card.stream is None or self.card.stream.start == "earliest"
                start = max(0, one.start) if first or earliest else 0
                known = self.partitions[one.partition] = Partition(start, waiting=[Span(start, FAR)])
                self.waiting.add(one.partition)
            if one.final:
                self._end(one.partition, known, one.end)
        return bool(news)

    def again(self, holder: LeaseHolder, known: Container[tuple[int, int]]) -> tuple[Grant, ...]:
        """Leases that the holder has not heard of: the answer that granted them was lost."""
        mine = self.held.get(holder.rank, {})
        return tuple(
            Grant(key.shard, 0, lease.running, key.first, lease.end) for key, lease in mine.items() if key not in known
        )

    def lease(self, holder: LeaseHolder, *, most: int, share: int, deadline: float) -> tuple[Grant, ...] | NoLease:
        """All that waits of partitions that are meant for the holder; of others until it has `share` partitions."""
        rank = holder.rank
        mine = self.held.setdefault(rank, {})
        has = {lease.running for lease in mine.values()}
        grants: list[Grant] = []
        for number in sorted(self.waiting) if not self.closed else ():
            partition = self.partitions[number]
            if len(grants) >= most:
                break
            full = number not in has and len(has) >= share
            if partition.owner != rank and (partition.owner is not None or full):
                continue
            has.add(number)
            partition.owner = rank
            for first, end in partition.waiting:
                key = LeaseKey(self.base + number, first)
                self.leases[key] = mine[key] = ShardLease(holder, number, first, first, end, deadline)
                grants.append(Grant(key.shard, 0, number, first, end))
            partition.waiting = []
            self.waiting.discard(number)
        if grants:
            return tuple(grants)
        return NoLease.END if self.closed or self.over else NoLease.WAIT

    def cuts_of(self, grants: Iterable[Grant]) -> tuple[BatchCut, ...]:
        """Where batches of these leases end that are not full, as far as is known."""
        return tuple(
            BatchCut(grant.shard, grant.first, at)
            for grant in grants
            for at in self.partitions[grant.nth].cuts_in(grant.first, grant.end)
        )

    def cut(self, holder: LeaseHolder, cut: BatchCut) -> bool | None:
        """A batch of the lease is to end before `cut.at`: whether that is news. None: it is not the holder's to say."""
        lease = self.leases.get(LeaseKey(cut.shard, cut.first))
        if lease is None or lease.holder != holder or not lease.offset < cut.at < lease.end:
            return None
        return cut.at % self.card.batch_size != 0 and self.partitions[lease.running].cut(cut.at)

    def report(self, holder: LeaseHolder, word: Progress, deadline: float) -> ReportEffect:
        """Take a holder's word on a lease, which is its own until `deadline` then."""
        key = LeaseKey(word.shard, word.first)
        lease = self.leases.get(key)
        if lease is None or lease.holder != holder:
            return NOT_HELD
        lease.deadline = deadline
        end = min(lease.end, max(lease.offset, word.end))
        offset = min(end, max(lease.offset, word.offset))
        answered = lease.wish is not None and word.end <= lease.wish
        trained, freed = offset - lease.offset, offset == end or end < lease.end or answered
        lease.offset = offset
        self.samples_done += trained
        void = min(max(lease.void, word.void), offset - lease.first)
        self.void, lease.void = self.void + void - lease.void, void
        if not self.returns and len(self.partitions[lease.running].cuts) > MOST_CUTS:
            self._forget(lease.running)
        if end < lease.end or answered:
            lease.wish = None
        if end < lease.end:
            self.put_back(lease.running, Span(end, lease.end))
            lease.end = end
        if offset == end:
            self._drop(key, lease)
        return ReportEffect(True, trained, freed)

    def fail(self, holder: LeaseHolder, failure: ReadFailure) -> bool:
        """The holder cannot read the batch at `failure.offset`; what comes before stays its own. False: not its lease.

        Only that batch is given up in the end: what comes after it may be well.
        """
        key = LeaseKey(failure.shard, failure.first)
        lease = self.leases.get(key)
        if lease is None or lease.holder != holder:
            return False
        number, end = lease.running, lease.end
        partition = self.partitions[number]
        begin = min(end, max(lease.offset, failure.offset))
        lease.end = begin
        if lease.offset == begin:
            self._drop(key, lease)
        if begin == end:
            return True
        partition.tries = partition.tries + 1 if partition.failed_at == begin else 1
        partition.failed_at, partition.owner = begin, None
        if partition.tries >= self.max_failures:
            after = min(end, partition.batch_end(begin, self.card.batch_size))
            self.poisoned.append(Poisoned(failure.shard, 0, begin, after, partition.tries, failure.error))
            partition.failed_at, partition.tries, begin = -1, 0, after
        self.put_back(number, Span(begin, end))
        return True

    # ---- what is decided about them ----

    def assign(self, number: int, rank: int | None) -> bool:
        """The partition is meant for this rank; others that hold it are asked to end soon. Whether that is news."""
        partition = self.partitions.get(number)
        if partition is None or partition.owner == rank:
            return False
        partition.owner = rank
        if rank is not None:
            for lease in self.leases.values():
                if lease.running == number:
                    lease.wish = None if lease.holder.rank == rank else lease.offset
        return True

    def disown(self, rank: int) -> None:
        """The rank is lost: what was meant for it is for whoever has room."""
        for partition in self.partitions.values():
            if partition.owner == rank:
                partition.owner = None

    def take_back(self, keys: Iterable[LeaseKey]) -> int:
        """These leases end here: what is left of each goes back. Returns how many there were."""
        count = 0
        for key in list(keys):
            lease = self.leases.get(key)
            if lease is not None:
                self._drop(key, lease)
                self.put_back(lease.running, Span(lease.offset, lease.end))
                self.partitions[lease.running].owner = None
                count += 1
        return count

    def wish(self, wish: ShrinkRequest) -> bool:
        """Ask the holder of a lease to end it sooner. False: there is no such lease, or it ends there anyway."""
        lease = self.leases.get(LeaseKey(wish.shard, wish.first))
        if lease is None:
            return False
        end = max(lease.offset, wish.end)
        if end >= lease.end or (lease.wish is not None and lease.wish <= end):
            return False
        lease.wish = end
        return True

    def wishes(self, rank: int) -> tuple[ShrinkRequest, ...]:
        """What this rank is asked to end sooner, as long as it has not answered."""
        mine = self.held.get(rank, {})
        return tuple(ShrinkRequest(key.shard, key.first, one.wish) for key, one in mine.items() if one.wish is not None)

    def keep(self, note: StreamLedgerState, keeps: int) -> bool:
        """A checkpoint that began with this note is complete, and `keeps` of them are kept: older cuts are forgotten.

        Whether anything has changed.
        """
        floors = floors_of(note)
        if self.floors and self.floors[-1] == floors:
            return False
        self.floors = [*self.floors, floors][-keeps:]
        if len(self.floors) == keeps:
            for number, floor in self.floors[0].items():
                self.partitions[number].forget(floor)
        return True

    # ---- what there is to know ----

    def wanted_by(self, rank: int) -> bool:
        """Whether something waits that the rank could have."""
        return any(self.partitions[number].owner in (None, rank) for number in self.waiting)

    @property
    def over(self) -> bool:
        """Whether all partitions have ended, and nothing of them is left to be trained."""
        if self.leases or self.waiting or not self.partitions:
            return False
        return all(partition.final for partition in self.partitions.values())

    @property
    def tries(self) -> int:
        """How often something could not be read that is still to be."""
        return sum(partition.tries for partition in self.partitions.values())

    def totals(self) -> Totals:
        """Partitions by state."""
        leased = {lease.running for lease in self.leases.values()}
        bad = {each.shard - self.base for each in self.poisoned}
        final = {number for number, partition in self.partitions.items() if partition.final}
        ends = len(final) == len(self.partitions)
        return Totals(
            total=len(self.partitions), leased=len(leased), done=len(final - leased - self.waiting - bad),
            poisoned=len(bad), samples_done=self.samples_done, void=self.void,
            samples=sum(one.end - one.start for one in self.partitions.values()) if ends else 0,
        )  # fmt: skip

    def check(self) -> None:
        """Every invariant; tests call it after each step."""
        left = 0
        for number, partition in self.partitions.items():
            spans = sorted(untrained_spans(self.leases.values(), self.poisoned, self.base, number, partition))
            assert all(first < end for first, end in spans), "a part is empty"
            assert sum(end - first for first, end in join_spans(spans)) == sum(end - first for first, end in spans), (
                "offsets are in two places"
            )
            assert all(partition.start <= first and end <= partition.end for first, end in spans), "beyond the end"
            assert partition.final or spans[-1].end == FAR, "what comes is nobody's"
            assert partition.waiting == join_spans(partition.waiting), "the queue is not in order"
            assert partition.cuts == sorted(set(partition.cuts)), "cuts are not in order"
            assert (number in self.waiting) == bool(partition.waiting), "the queue is not known"
            left += partition.end - partition.start - sum(end - first for first, end in spans)
        assert left == self.samples_done, "offsets are miscounted"
        assert 0 <= self.void <= self.samples_done, "more held nothing to train than was looked at"
        for key, lease in self.leases.items():
            assert key == (self.base + lease.running, lease.first), "a lease lies under another's name"
            assert lease.first <= lease.offset < lease.end, "a lease with nothing left to do is kept"
            assert self.held[lease.holder.rank][key] is lease, "a lease is not in its holder's hands"
        assert sum(len(mine) for mine in self.held.values()) == len(self.leases), "a hand holds what is not leased"

    def to_state(self) -> StreamLedgerState:
        """Everything, as plain data."""
        return StreamLedgerState(
            card=self.card, base=self.base, closed=self.closed,
            partitions={number: partition.copy() for number, partition in self.partitions.items()},
            leases=tuple(replace(lease) for lease in self.leases.values()), samples_done=self.samples_done,
            poisoned=tuple(self.poisoned), floors=tuple(dict(floors) for floors in self.floors),
            returns=self.returns, void=self.void,
        )  # fmt: skip

    @staticmethod
    def from_state(state: StreamLedgerState, max_failures: int) -> "StreamLedger":
        """A pass that goes on where that one was."""
        flow = StreamLedger(state.card, state.base, max_failures)
        flow.partitions = {number: partition.copy() for number, partition in state.partitions.items()}
        flow.waiting = {number for number, partition in flow.partitions.items() if partition.waiting}
        for kept in state.leases:
            lease = replace(kept)
            key = LeaseKey(state.base + lease.running, lease.first)
            flow.leases[key] = flow.held.setdefault(lease.holder.rank, {})[key] = lease
        flow.samples_done, flow.poisoned, flow.closed = state.samples_done, list(state.poisoned), state.closed
        flow.floors, flow.returns, flow.void = [dict(floors) for floors in state.floors], state.returns, state.void
        return flow

    # ---- inside ----

    def _end(self, number: int, partition: Partition, end: int) -> None:
        """Nothing comes after `end`, or after what is trained if that is more; holders are asked to stop there."""
        mine = [(key, lease) for key, lease in self.leases.items() if lease.running == number]
        tail = max([first for first, until in partition.waiting if until == FAR], default=partition.start)
        end = max(end, tail, *(lease.offset for _, lease in mine), partition.start)
        partition.end_at(end)
        if not partition.waiting:
            self.waiting.discard(number)
        for key, lease in mine:
            if lease.end > end:
                lease.end = lease.wish = end
                if lease.offset == end:
                    self._drop(key, lease)

    def _forget(self, number: int) -> None:
        """Cuts of a partition that lie before all that is not trained."""
        spans = untrained_spans(self.leases.values(), self.poisoned, self.base, number, self.partitions[number])
        self.partitions[number].forget(min((first for first, _ in spans), default=0))

    def put_back(self, number: int, span: Span) -> None:
        """These offsets are to be handed out again."""
        self.partitions[number].put_back(span)
        if span.first < span.end:
            self.waiting.add(number)

    def _drop(self, key: LeaseKey, lease: ShardLease) -> None:
        del self.leases[key]
        del self.held[lease.holder.rank][key]


def untrained_spans(
    leases: Iterable[ShardLease], poisoned: Iterable[Poisoned], base: int, number: int, partition: Partition
) -> Iterator[Span]:
    """What of a partition is not trained, wherever it is."""
    yield from partition.waiting
    yield from (Span(lease.offset, lease.end) for lease in leases if lease.running == number)
    yield from (Span(each.first, each.end) for each in poisoned if each.shard - base == number)


def floors_of(note: StreamLedgerState) -> dict[int, int]:
    """Of each partition the first offset that a note does not have as trained."""
    floors = {
        number: partition.waiting[0].first if partition.waiting else partition.end
        for number, partition in note.partitions.items()
    }
    places = [(lease.running, lease.offset) for lease in note.leases]
    places += [(each.shard - note.base, each.first) for each in note.poisoned]
    for number, first in places:
        floors[number] = min(floors[number], first)
    return floors
