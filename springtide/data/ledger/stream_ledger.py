"""Pure. Leases the partitions of a stream to workers. A partition is a shard without an end, leased as a whole.

A lease of a stream ends when the master asks the lease's holder to end it (`wish`). Another rank then gets the offsets
after the last batch that the holder has begun. Every reader of the same offsets must find the same batches. Full
batches therefore end at multiples of the batch size, and partial batches end at a `cut`, which the ledger records
before the holder trains the batch. docs/design/stream-ledger.md has the reasons.
"""

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from springtide.data.ledger.async_ledger import NOT_HELD, ReportEffect, ShardLease, SharedLedger
from springtide.domain.data.leases import Grant, LeaseHolder, LeaseKey, NoLease, Poisoned, Progress, ReadFailure, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, MOST_PARTITIONS, BatchCut, PartitionRange


class Span(NamedTuple):
    """A range of offsets of a partition, from `first` to `end`."""

    first: int
    end: int


class Partition(msgspec.Struct):
    """The state of one partition. An offset is trained if the offset was leased before, and is now neither leased nor
    pending.
    """

    start: int
    """First offset that the job reads."""
    end: int = FAR
    """Final end of the partition; None while the end is unknown."""
    waiting: list[Span] = msgspec.field(default_factory=list)
    """Spans that no worker holds: in ascending order, with gaps between them."""
    cuts: list[int] = msgspec.field(default_factory=list)
    """Ends of partial batches, in ascending order."""
    owner: int | None = None
    """Rank to which the partition is assigned; None if any rank with room may lease it."""
    failed_at: int = -1
    """The last unreadable offset, and the number of tries to read it."""
    tries: int = 0

    @property
    def final(self) -> bool:
        return self.end < FAR

    def put_back(self, span: Span) -> None:
        self.waiting = join_spans([*self.waiting, span])

    def end_at(self, end: int) -> None:
        """Set the final end of the stream, and drop all offsets beyond this end."""
        self.end = end
        self.waiting = [Span(first, min(until, end)) for first, until in self.waiting if first < end]

    def cut(self, at: int) -> bool:
        """End a batch before `at`. Return True if the cut is new."""
        place = bisect.bisect_left(self.cuts, at)
        if place < len(self.cuts) and self.cuts[place] == at:
            return False
        self.cuts.insert(place, at)
        return True

    def cuts_in(self, first: int, end: int) -> list[int]:
        return self.cuts[bisect.bisect_right(self.cuts, first) : bisect.bisect_left(self.cuts, end)]

    def forget(self, below: int) -> None:
        """Drop cuts before an offset below which no worker will read again."""
        del self.cuts[: bisect.bisect_right(self.cuts, below)]

    def batch_end(self, first: int, batch_size: int) -> int:
        full = (first // batch_size + 1) * batch_size
        cuts = self.cuts_in(first, full)
        return min(self.end, cuts[0] if cuts else full)

    def copy(self) -> "Partition":
        return Partition(
            self.start, self.end, list(self.waiting), list(self.cuts), self.owner, self.failed_at, self.tries
        )


def join_spans(spans: Iterable[Span]) -> list[Span]:
    """Merge spans into ascending spans that are not adjacent."""
    merged: list[Span] = []
    for first, end in sorted(spans):
        if merged and first <= merged[-1].end:
            merged[-1] = Span(merged[-1].first, max(end, merged[-1].end))
        elif first < end:
            merged.append(Span(first, end))
    return merged


MOST_GRANTS = 256  # most grants in one call; the next call can return more
# most cuts of a partition to keep; a job without checkpoints then drops the oldest cuts, which it no longer needs
MOST_CUTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLedgerState:
    """A `StreamLedger` as plain data."""

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
class StreamLedger(SharedLedger):
    """Leases and progress of each partition. `samples_done` counts offsets, including offsets without a record to
    train.
    """

    partitions: dict[int, Partition] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    """Partitions without a lease."""
    void: int = 0
    """Offsets that held no record to train."""
    floors: list[dict[int, int]] = field(default_factory=list)
    """First untrained offset of each partition, in each of the last complete checkpoints. Cuts before those of the
    oldest checkpoint can be dropped."""
    returns: bool = True
    """True if the job may roll back; False in a job without checkpoints, which never trains an offset again."""
    numbers: int = MOST_PARTITIONS
    """Number of shard numbers that the pass uses."""

    # ---- requests of workers ----

    def news(self, seen: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
        """Return the partitions that are new to the ledger. Changes nothing."""
        if self.over:
            return ()
        return tuple(
            partition
            for partition in seen
            if 0 <= partition.partition < self.numbers
            and ((known := self.partitions.get(partition.partition)) is None or (partition.final and not known.final))
        )

    def see(self, seen: Iterable[PartitionRange]) -> bool:
        """Add the partitions of a reader's report. Of several reports on a partition, the first counts. Return True if
        something is new.

        A partition that appears later was added to the stream, so the job trains all its records.
        """
        news, first = self.news(seen), not self.partitions
        for partition in news:
            known = self.partitions.get(partition.partition)
            if known is None:
                earliest = self.card.stream is None or self.card.stream.start == "earliest"
                start = max(0, partition.start) if first or earliest else 0
                known = self.partitions[partition.partition] = Partition(start, waiting=[Span(start, FAR)])
                self.waiting.add(partition.partition)
            if partition.final:
                self._end(partition.partition, known, partition.end)
        return bool(news)

    def lease(self, holder: LeaseHolder, *, most: int, share: int, deadline: float) -> tuple[Grant, ...] | NoLease:
        """Lease spans of the holder's partitions, and of unassigned partitions until the holder has `share`
        partitions."""
        rank = holder.rank
        has = {lease.running for lease in self.held.get(rank, {}).values()}
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
                lease = ShardLease(holder, number, first, first, end, deadline)
                self._hold(lease)
                grants.append(self._grant(lease))
            partition.waiting = []
            self.waiting.discard(number)
        if grants:
            return tuple(grants)
        return NoLease.END if self.closed or self.over else NoLease.WAIT

    def cuts_of(self, grants: Iterable[Grant]) -> tuple[BatchCut, ...]:
        """Return the known cuts within these leases."""
        return tuple(
            BatchCut(grant.shard, grant.first, at)
            for grant in grants
            for at in self.partitions[grant.nth].cuts_in(grant.first, grant.end)
        )

    def cut(self, holder: LeaseHolder, cut: BatchCut) -> bool | None:
        """End a batch of the lease before `cut.at`. Return True if new; None if the worker does not hold the lease."""
        lease = self.lease_of(holder, cut)
        if lease is None or not lease.offset < cut.at < lease.end:
            return None
        return cut.at % self.card.batch_size != 0 and self.partitions[lease.running].cut(cut.at)

    def report(self, holder: LeaseHolder, report: Progress, deadline: float) -> ReportEffect:
        """Apply a holder's report on a lease, and extend the lease to `deadline`."""
        if (lease := self.lease_of(holder, report)) is None:
            return NOT_HELD
        lease.deadline = deadline
        end = min(lease.end, max(lease.offset, report.end))
        offset = min(end, max(lease.offset, report.offset))
        answered = lease.wish is not None and report.end <= lease.wish
        trained, freed = offset - lease.offset, offset == end or end < lease.end or answered
        lease.offset = offset
        self.samples_done += trained
        void = min(max(lease.void, report.void), offset - lease.first)
        self.void, lease.void = self.void + void - lease.void, void
        if not self.returns and len(self.partitions[lease.running].cuts) > MOST_CUTS:
            self._forget(lease.running)
        if end < lease.end or answered:
            lease.wish = None
        if end < lease.end:
            self.put_back(lease.running, Span(end, lease.end))
            lease.end = end
        if offset == end:
            self._drop(lease)
        return ReportEffect(True, trained, freed)

    def fail(self, holder: LeaseHolder, failure: ReadFailure) -> bool:
        """Record that the holder cannot read the batch at `failure.offset`. The holder still has its lease of the
        offsets before this batch.

        After `max_failures` tries the ledger gives up only this batch, because later offsets may be readable. Return
        False if the worker does not hold the lease.
        """
        if (lease := self.lease_of(holder, failure)) is None:
            return False
        number, end = lease.running, lease.end
        partition = self.partitions[number]
        begin = min(end, max(lease.offset, failure.offset))
        lease.end = begin
        if lease.offset == begin:
            self._drop(lease)
        if begin == end:
            return True
        partition.tries = partition.tries + 1 if partition.failed_at == begin else 1
        partition.failed_at, partition.owner = begin, None
        if partition.tries >= self.max_failures:
            after = min(end, partition.batch_end(begin, self.card.batch_size))
            self.poisoned.append(Poisoned(failure.shard, 0, begin, after, partition.tries, failure.error))
            partition.tries, begin = 0, after
        self.put_back(number, Span(begin, end))
        return True

    # ---- decisions about workers ----

    def assign(self, number: int, rank: int | None) -> bool:
        """Assign the partition, and ask its holder to end the lease soon. Return True if the owner is new."""
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
        for partition in self.partitions.values():
            if partition.owner == rank:
                partition.owner = None

    def take_back(self, keys: Iterable[LeaseKey]) -> int:
        """Revoke these leases, so that other ranks can lease their untrained offsets. Return the number of revoked
        leases.
        """
        count = 0
        for key in list(keys):
            lease = self.leases.get(key)
            if lease is not None:
                self._drop(lease)
                self.put_back(lease.running, Span(lease.offset, lease.end))
                self.partitions[lease.running].owner = None
                count += 1
        return count

    def keep(self, note: StreamLedgerState, keeps: int) -> bool:
        """Record a complete checkpoint, and drop cuts that the last `keeps` checkpoints do not need. Return True on a
        change.
        """
        floors = floors_of(note)
        if self.floors and self.floors[-1] == floors:
            return False
        self.floors = [*self.floors, floors][-keeps:]
        if len(self.floors) == keeps:
            for number, floor in self.floors[0].items():
                self.partitions[number].forget(floor)
        return True

    # ---- queries ----

    def wanted_by(self, rank: int) -> bool:
        """Return True if offsets are pending that this rank could lease."""
        return any(self.partitions[number].owner in (None, rank) for number in self.waiting)

    @property
    def over(self) -> bool:
        """True if all partitions have ended, and every offset is trained."""
        if self.leases or self.waiting or not self.partitions:
            return False
        return all(partition.final for partition in self.partitions.values())

    @property
    def tries(self) -> int:
        """Number of failed reads of offsets that no worker has read yet."""
        return sum(partition.tries for partition in self.partitions.values())

    def totals(self) -> Totals:
        leased = {lease.running for lease in self.leases.values()}
        bad = {poisoned.shard - self.base for poisoned in self.poisoned}
        final = {number for number, partition in self.partitions.items() if partition.final}
        ends = len(final) == len(self.partitions)
        return Totals(
            total=len(self.partitions),
            leased=len(leased),
            done=len(final - leased - self.waiting - bad),
            poisoned=len(bad),
            samples_done=self.samples_done,
            void=self.void,
            samples=sum(partition.end - partition.start for partition in self.partitions.values()) if ends else 0,
        )

    def to_state(self) -> StreamLedgerState:
        return StreamLedgerState(
            card=self.card,
            base=self.base,
            closed=self.closed,
            partitions={number: partition.copy() for number, partition in self.partitions.items()},
            leases=tuple(replace(lease) for lease in self.leases.values()),
            samples_done=self.samples_done,
            poisoned=tuple(self.poisoned),
            floors=tuple(dict(floors) for floors in self.floors),
            returns=self.returns,
            void=self.void,
        )

    @staticmethod
    def from_state(state: StreamLedgerState, max_failures: int) -> "StreamLedger":
        flow = StreamLedger(state.card, state.base, max_failures)
        flow.partitions = {number: partition.copy() for number, partition in state.partitions.items()}
        flow.waiting = {number for number, partition in flow.partitions.items() if partition.waiting}
        for lease in state.leases:
            flow._hold(replace(lease))
        flow.samples_done, flow.poisoned, flow.closed = state.samples_done, list(state.poisoned), state.closed
        flow.floors, flow.returns, flow.void = [dict(floors) for floors in state.floors], state.returns, state.void
        return flow

    # ---- internals ----

    def _end(self, number: int, partition: Partition, end: int) -> None:
        """End a partition at `end`, or after its last trained offset if that is later. Ask the holder to stop there."""
        mine = [lease for lease in self.leases.values() if lease.running == number]
        tail = [first for first, until in partition.waiting if until == FAR]
        end = max(end, partition.start, *tail, *(lease.offset for lease in mine))
        partition.end_at(end)
        if not partition.waiting:
            self.waiting.discard(number)
        for lease in mine:
            if lease.end > end:
                lease.end = lease.wish = end
                if lease.offset == end:
                    self._drop(lease)

    def _forget(self, number: int) -> None:
        """Drop the cuts of a partition that lie before its first untrained offset."""
        spans = untrained_spans(self.leases.values(), self.poisoned, self.base, number, self.partitions[number])
        self.partitions[number].forget(min(first for first, _ in spans))

    def put_back(self, number: int, span: Span) -> None:
        self.partitions[number].put_back(span)
        if span.first < span.end:
            self.waiting.add(number)

    def _grant(self, lease: ShardLease) -> Grant:
        return Grant(self.base + lease.running, 0, lease.running, lease.first, lease.end)


def untrained_spans(
    leases: Iterable[ShardLease], poisoned: Iterable[Poisoned], base: int, number: int, partition: Partition
) -> Iterator[Span]:
    """Return the untrained offsets of a partition: pending, leased or given up."""
    yield from partition.waiting
    yield from (Span(lease.offset, lease.end) for lease in leases if lease.running == number)
    yield from (Span(given_up.first, given_up.end) for given_up in poisoned if given_up.shard - base == number)


def floors_of(note: StreamLedgerState) -> dict[int, int]:
    """Return the first offset of each partition that is not trained in a checkpoint."""
    floors = {
        number: partition.waiting[0].first if partition.waiting else partition.end
        for number, partition in note.partitions.items()
    }
    places = [(lease.running, lease.offset) for lease in note.leases]
    places += [(given_up.shard - note.base, given_up.first) for given_up in note.poisoned]
    for number, first in places:
        floors[number] = min(floors[number], first)
    return floors
