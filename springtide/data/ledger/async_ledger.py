"""Pure. Leases the samples of a pass to workers that train at their own pace: a sample is pending, leased or trained.

In: calls of data/ledger/job_ledger.py, which asks for leases and forwards the holders' reports. Out: grants and
replies. The clock is an argument, and every changing method depends only on its arguments. A journal of calls can
therefore be replayed. A single cursor separates leased samples from samples that were never leased, so the ledger needs
little memory for a pass of any size.
"""

import abc
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

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
from springtide.domain.data.streams import BatchCut


class ShardRange(NamedTuple):
    """Samples `first` to `end` of shard number `running` of a pass."""

    running: int
    first: int
    end: int


@dataclass(slots=True)
class PendingQueue:
    """Samples of a pass that no worker holds. Returned samples come first (oldest first), then samples that were never
    leased, then samples that could not be read."""

    card: DatasetCard
    running: int = 0
    """First shard with samples that were never leased."""
    cut: int = 0
    """First sample of that shard that was never leased."""
    returned: deque[ShardRange] = field(default_factory=deque)
    failed: deque[ShardRange] = field(default_factory=deque)
    length: int | None = None
    """Number of samples of an epoch, for a data set whose card does not give the number."""
    samples: int = field(init=False)
    shards: int = field(init=False)
    """Number of shards in the pass. This field and the next three fields are computed once from the card."""
    an_epoch: int = field(init=False)
    whole: int = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        used = self.card.samples_used if self.length is None else self.length
        self.whole = self.card.shard_size
        self.an_epoch = -(-used // self.whole)
        self.shards = self.card.epochs * self.an_epoch
        self.last = used - (self.an_epoch - 1) * self.whole
        if self.running < self.shards:
            epoch, index = divmod(self.running, self.an_epoch)
            handed_out = epoch * used + index * self.whole + self.cut
            self.samples = self.card.epochs * used - handed_out
        else:
            self.samples = 0
        self.samples += sum(piece.end - piece.first for piece in (*self.returned, *self.failed))

    def size_of(self, running: int) -> int:
        return self.whole if (running + 1) % self.an_epoch else self.last

    def take(self, most: int, may_try: Callable[[ShardRange], bool] = lambda _: True) -> ShardRange | None:
        """Take at most `most` samples. Failed ranges come last, and only if `may_try` accepts them."""
        if self.returned:
            return self._cut_from(self.returned, most)
        if self.running < self.shards:
            size = self.size_of(self.running)
            piece = ShardRange(self.running, self.cut, min(size, self.cut + most))
            self.cut = piece.end
            if self.cut == size:
                self.running, self.cut = self.running + 1, 0
            self.samples -= piece.end - piece.first
            return piece
        at = next((at for at, piece in enumerate(self.failed) if may_try(piece)), None)
        return None if at is None else self._cut_from(self.failed, most, at)

    def put_back(self, piece: ShardRange, *, failed: bool = False) -> None:
        """Queue a range again. A range that could not be read goes to the end."""
        if piece.end > piece.first:
            (self.failed if failed else self.returned).append(piece)
            self.samples += piece.end - piece.first

    def _cut_from(self, queue: deque[ShardRange], most: int, at: int = 0) -> ShardRange:
        piece = queue[at]
        if piece.end - piece.first <= most:
            del queue[at]
        else:
            queue[at] = ShardRange(piece.running, piece.first + most, piece.end)
            piece = ShardRange(piece.running, piece.first, piece.first + most)
        self.samples -= piece.end - piece.first
        return piece


@dataclass(slots=True)
class ShardLease:
    """A lease of consecutive batches of a shard, held by a worker."""

    holder: LeaseHolder
    running: int
    first: int
    offset: int
    """End of the trained samples."""
    end: int
    deadline: float
    wish: int | None = None
    """New end of the lease that the master requested from the holder."""
    returned: bool = False
    """True if another worker held the lease of these samples earlier."""
    void: int = 0
    """For a stream: number of finished offsets without a record to train."""


class ReportEffect(NamedTuple):
    """Effect of a holder's report."""

    held: bool
    """False if the reporting worker does not hold the lease. If False, the report changed nothing."""
    samples: int = 0
    """Number of newly trained samples."""
    freed: bool = False
    """True if the lease ended, or its tail was returned."""


NOT_HELD = ReportEffect(held=False)
Failures = dict[int, dict[int, tuple[int, ...]]]
"""Ranks that failed to read a range, by shard and first unreadable sample, with one entry for each try."""


def void_of(short: int, samples_done: int, length: int | None) -> int:
    """Return how many samples that count as trained do not exist. These samples are subtracted once the pass is
    trained."""
    return short if samples_done == length else 0


def copied(failures: Failures) -> Failures:
    return {running: dict(of_shard) for running, of_shard in failures.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLength:
    """Number of samples of an epoch, for a data set whose card does not give the number."""

    length: int | None
    short: int = 0
    """Number of these samples that do not exist, because some mini-batches are not full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLedgerState(EpochLength):
    """An `AsyncLedger` as plain data."""

    card: DatasetCard
    base: int
    closed: bool
    running: int
    cut: int
    returned: tuple[ShardRange, ...]
    failed: tuple[ShardRange, ...]
    leases: tuple[ShardLease, ...]
    left: dict[int, int]
    done: int
    samples_done: int
    failures: Failures
    poisoned: tuple[Poisoned, ...]
    asked_back: tuple[int, ...]

    @property
    def void(self) -> int:
        return void_of(self.short, self.samples_done, self.length)


@dataclass(slots=True)
class SharedLedger(abc.ABC):
    """Leases of a pass in which a worker can take over another worker's samples."""

    card: DatasetCard
    base: int
    """Number of the first shard. Numbers of different passes do not overlap."""
    max_failures: int = 3
    """Number of tries after which the ledger gives up an unreadable range."""
    leases: dict[LeaseKey, ShardLease] = field(default_factory=dict)
    held: dict[int, dict[LeaseKey, ShardLease]] = field(default_factory=dict)
    """The leases of this pass by rank. A rank has a single incarnation at a time."""
    samples_done: int = 0
    poisoned: list[Poisoned] = field(default_factory=list)
    closed: bool = False

    def close(self) -> None:
        self.closed = True

    def again(self, holder: LeaseHolder, known: Container[tuple[int, int]]) -> tuple[Grant, ...]:
        """Return leases that the holder does not know, because the reply with these leases was lost."""
        mine = self.held.get(holder.rank, {})
        return tuple(self._grant(lease) for key, lease in mine.items() if key not in known)

    def lease_of(self, holder: LeaseHolder, named: Progress | ReadFailure | BatchCut) -> ShardLease | None:
        """Return the lease that a worker names; return None if the worker does not hold that lease."""
        lease = self.leases.get(LeaseKey(named.shard, named.first))
        return lease if lease is not None and lease.holder == holder else None

    def wish(self, wish: ShrinkRequest) -> bool:
        """Ask the holder of a lease to end it earlier. Return False if the request changes nothing."""
        lease = self.leases.get(LeaseKey(wish.shard, wish.first))
        if lease is None:
            return False
        end = max(lease.offset, wish.end)
        if end >= lease.end or (lease.wish is not None and lease.wish <= end):
            return False
        lease.wish = end
        return True

    def wishes(self, rank: int) -> tuple[ShrinkRequest, ...]:
        """Return the open requests to this rank to end leases earlier."""
        mine = self.held.get(rank)
        if not mine:
            return ()
        return tuple(
            ShrinkRequest(key.shard, key.first, lease.wish) for key, lease in mine.items() if lease.wish is not None
        )

    @abc.abstractmethod
    def _grant(self, lease: ShardLease) -> Grant: ...

    def _hold(self, lease: ShardLease) -> None:
        key = LeaseKey(self.base + lease.running, lease.first)
        self.leases[key] = self.held.setdefault(lease.holder.rank, {})[key] = lease

    def _drop(self, lease: ShardLease) -> None:
        key = LeaseKey(self.base + lease.running, lease.first)
        del self.leases[key]
        del self.held[lease.holder.rank][key]


@dataclass(slots=True)
class AsyncLedger(SharedLedger):
    """Leases and trained samples of a single pass over shards."""

    todo: PendingQueue = field(init=False)
    numbers: int = field(init=False)
    """Number of shard numbers that the pass uses."""
    left: dict[int, int] = field(default_factory=dict)
    """Number of untrained samples of each shard that is begun but not finished."""
    done: int = 0
    failures: Failures = field(default_factory=dict)
    """Read failures of unfinished shards."""
    asked_back: set[int] = field(default_factory=set)
    """Ranks that the master asked to shorten a lease. Such a rank gets no further lease until the shortened lease ends.
    """
    short: int = 0
    """Number of samples that mini-batches of a data set without a length lack, because they are not full."""

    def __post_init__(self) -> None:
        self.todo = PendingQueue(self.card)
        self.numbers = self.todo.shards

    def lease(
        self, holder: LeaseHolder, *, most: int, size: int, budget: int, deadline: float, others: Collection[int] = ()
    ) -> tuple[Grant, ...] | NoLease:
        """Grant up to `most` leases of at most `size` samples each, about `budget` samples in total, and at least one
        lease.

        If this rank failed to read a range, the range waits until each of the `others` has tried to read it.
        """
        mine = self.held.setdefault(holder.rank, {})

        def may_try(piece: ShardRange) -> bool:
            tried = self.failures.get(piece.running, {}).get(piece.first, ())
            return holder.rank not in tried or all(rank in tried for rank in others)

        grants: list[Grant] = []
        enough = self.closed or holder.rank in self.asked_back
        while not enough and len(grants) < most and (budget > 0 or not grants):
            returned = bool(self.todo.returned)
            piece = self.todo.take(size, may_try)
            if piece is None:
                break
            running, first, end = piece
            if running not in self.left:
                self.left[running] = self.todo.size_of(running)
            lease = ShardLease(holder, running, first, first, end, deadline, returned=returned)
            self._hold(lease)
            grants.append(self._grant(lease))
            budget -= end - first
        if grants:
            return tuple(grants)
        waits = len(self.leases) > len(mine) or bool(self.todo.samples)
        return NoLease.WAIT if waits and not self.closed else NoLease.END

    def report(self, holder: LeaseHolder, report: Progress, deadline: float) -> ReportEffect:
        """Apply a holder's report about a lease, and extend the lease to `deadline`."""
        if (lease := self.lease_of(holder, report)) is None:
            return NOT_HELD
        lease.deadline = deadline
        if report.offset == report.end == lease.end:  # fast path for the common case that the whole lease is trained
            samples = lease.end - lease.offset
            self._trained(lease, lease.end)
            self._drop(lease)
            return ReportEffect(True, samples, True)
        grid = self.card.batch_size
        end = min(lease.end, max(lease.offset, -(-report.end // grid) * grid))
        offset = end if report.offset >= end else max(lease.offset, report.offset - report.offset % grid)
        trained_before = lease.offset
        freed = offset == end or end < lease.end
        self._cut(lease, end)
        self._trained(lease, offset)
        if offset == end:
            self._drop(lease)
        return ReportEffect(True, offset - trained_before, freed)

    def end_at(self, samples: int, short: int = 0) -> bool:
        """Set the length of an epoch for a data set without a known length, and drop all samples beyond it. `short` of
        the samples in the last mini-batches do not exist, because these batches are not full.
        """
        old = self.todo
        if not self.card.endless or old.length is not None:
            return False
        self.short = short
        at_end = (old.running, old.cut) >= divmod(samples, old.whole)
        running, cut = (-(-samples // old.whole), 0) if at_end else (old.running, old.cut)
        self.todo = PendingQueue(self.card, running, cut, length=samples)
        for queue, failed in ((old.returned, False), (old.failed, True)):
            for piece in queue:
                end = min(piece.end, samples - piece.running * old.whole)
                self.todo.put_back(ShardRange(piece.running, min(piece.first, end), end), failed=failed)
        for lease in list(self.leases.values()):
            lease.end = min(lease.end, max(lease.offset, samples - lease.running * old.whole))
            if lease.end == lease.offset:
                self._drop(lease)
        for begun in [begun for begun in self.left if (begun + 1) * old.whole > samples]:
            self.left[begun] -= (begun + 1) * old.whole - max(samples, begun * old.whole)
            if self.left[begun] <= 0:
                del self.left[begun]
                self.done += begun * old.whole < samples
        return True

    def fail(self, holder: LeaseHolder, failure: ReadFailure) -> bool:
        """Record that the holder cannot read the sample at `failure.offset`. The holder keeps the samples before that
        offset.

        Return False if the worker does not hold the lease.
        """
        if (lease := self.lease_of(holder, failure)) is None:
            return False
        grid = self.card.batch_size
        begin = min(lease.end, max(lease.offset, failure.offset - failure.offset % grid))
        piece = ShardRange(lease.running, begin, lease.end)
        lease.end = begin
        if lease.offset == begin:
            self._drop(lease)
        if piece.first == piece.end:
            return True
        of_shard = self.failures.setdefault(lease.running, {})
        tried = of_shard[begin] = (*of_shard.get(begin, ()), holder.rank)
        if len(tried) < self.max_failures:
            self.todo.put_back(piece, failed=True)
        else:
            epoch = self.card.first_epoch + lease.running // self.card.shards
            self.poisoned.append(Poisoned(failure.shard, epoch, begin, piece.end, len(tried), failure.error))
        return True

    def take_back(self, keys: Iterable[LeaseKey]) -> int:
        """Revoke these leases, and queue their untrained samples again. Return the number of revoked leases.

        Ranges of partly trained leases come first in the queue, then ranges that another worker held before.
        """
        ended = [lease for key in keys if (lease := self.leases.get(key)) is not None]
        ended.sort(key=lambda lease: (lease.offset == lease.first, not lease.returned))
        for lease in ended:
            self.todo.put_back(ShardRange(lease.running, lease.offset, lease.end))
            self._drop(lease)
        return len(ended)

    def wish(self, wish: ShrinkRequest) -> bool:
        grid = self.card.batch_size
        if not SharedLedger.wish(self, wish._replace(end=-(-wish.end // grid) * grid)):
            return False
        self.asked_back.add(self.leases[LeaseKey(wish.shard, wish.first)].holder.rank)
        return True

    @property
    def over(self) -> bool:
        """True if no sample of the pass is left to train."""
        return not self.leases and not self.todo.samples

    @property
    def tries(self) -> int:
        """Number of failed reads of ranges that no worker has read yet."""
        return sum(len(tried) for of_shard in self.failures.values() for tried in of_shard.values())

    def totals(self) -> Totals:
        endless = self.card.endless and self.todo.length is None
        return Totals(
            total=self.todo.running + bool(self.todo.cut) if endless else self.todo.shards,
            leased=len({lease.running for lease in self.leases.values()}),
            done=self.done,
            poisoned=len({poisoned.shard for poisoned in self.poisoned}),
            samples=0 if endless else self.length - self.short,
            samples_done=self.samples_done,
            void=self.void,
        )

    def shard_states(self) -> str:
        todo = self.todo
        begun = min(todo.running + bool(todo.cut), todo.shards)
        states = ["d"] * begun + ["p"] * (0 if self.card.endless and todo.length is None else todo.shards - begun)
        for piece in (*todo.returned, *todo.failed):
            states[piece.running] = "p"
        if todo.cut:
            states[todo.running] = "p"
        for lease in self.leases.values():
            states[lease.running] = "l"
        for poisoned in self.poisoned:
            states[poisoned.shard - self.base] = "x"
        return "".join(states)

    def to_state(self) -> AsyncLedgerState:
        todo = self.todo
        return AsyncLedgerState(
            card=self.card,
            base=self.base,
            closed=self.closed,
            length=todo.length,
            running=todo.running,
            cut=todo.cut,
            returned=tuple(todo.returned),
            failed=tuple(todo.failed),
            leases=tuple(replace(lease) for lease in self.leases.values()),
            left=dict(self.left),
            done=self.done,
            samples_done=self.samples_done,
            failures=copied(self.failures),
            poisoned=tuple(self.poisoned),
            asked_back=tuple(sorted(self.asked_back)),
            short=self.short,
        )

    @staticmethod
    def from_state(state: AsyncLedgerState, max_failures: int) -> "AsyncLedger":
        ledger = AsyncLedger(state.card, state.base, max_failures)
        queues = deque(state.returned), deque(state.failed)
        ledger.todo = PendingQueue(state.card, state.running, state.cut, *queues, state.length)
        for lease in state.leases:
            ledger._hold(replace(lease))
        ledger.left, ledger.failures = dict(state.left), copied(state.failures)
        ledger.done, ledger.samples_done = state.done, state.samples_done
        ledger.poisoned, ledger.closed = list(state.poisoned), state.closed
        ledger.asked_back, ledger.short = set(state.asked_back), state.short
        return ledger

    @property
    def void(self) -> int:
        return void_of(self.short, self.samples_done, self.length)

    @property
    def length(self) -> int:
        return self.card.epochs * (self.card.samples_used if self.todo.length is None else self.todo.length)

    def _grant(self, lease: ShardLease) -> Grant:
        epoch, nth = divmod(lease.running, self.todo.an_epoch)
        shard, epoch = self.base + lease.running, self.card.first_epoch + epoch
        return Grant(shard, epoch, nth, lease.first, lease.end, lease.returned)

    def _cut(self, lease: ShardLease, end: int) -> None:
        if end < lease.end:
            self.todo.put_back(ShardRange(lease.running, end, lease.end))
            lease.end, lease.wish = end, None

    def _trained(self, lease: ShardLease, offset: int) -> None:
        trained = offset - lease.offset
        if trained:
            lease.offset = offset
            self.samples_done += trained
            self.left[lease.running] -= trained
            if not self.left[lease.running]:
                del self.left[lease.running]
                self.failures.pop(lease.running, None)
                self.done += 1

    def _drop(self, lease: ShardLease) -> None:
        SharedLedger._drop(self, lease)
        if not self.held[lease.holder.rank]:
            self.asked_back.discard(lease.holder.rank)
