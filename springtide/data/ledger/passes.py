"""Pure. Holds all passes of a job over its data, and the workers as lease holders; rolls back to checkpoints.

A pass is an `AsyncLedger` (shards, each worker at its own pace), a `StreamLedger` (partitions of a stream) or a
`BspLedger` (a bsp group). job_ledger.py opens and changes passes. A checkpoint's manifest stores a `JobProgress`.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from springtide.data.ledger.async_ledger import AsyncLedger, AsyncLedgerState, PendingQueue, ShardLease, ShardRange
from springtide.data.ledger.bsp_ledger import BspLedger, BspStreamLedger, resume_bsp_ledger
from springtide.data.ledger.stream_ledger import (
    Partition,
    Span,
    StreamLedger,
    StreamLedgerState,
    join_spans,
    untrained_spans,
)
from springtide.domain.data.leases import Grant, LeaseKey, Poisoned, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, BatchCut

PassLedger = AsyncLedger | StreamLedger | BspLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """Progress of a job when a checkpoint began. Every slot of the checkpoint contains all batches of this progress."""

    ledgers: tuple[AsyncLedgerState, ...] = ()
    locksteps: tuple[BspLedger, ...] = ()
    """Passes of a bsp group, all recorded at the same step."""
    flows: tuple[StreamLedgerState, ...] = ()
    """Passes over streams."""
    next_shard: int = 0
    """Number of the first shard that no pass of the job uses. The number is also above the shards of passes that began
    after the record."""
    samples_before: int = 0
    """Number of samples trained by earlier runs whose model the job took over to train on new data."""

    @property
    def samples(self) -> int:
        shards = sum(ledger.samples_done - ledger.void for ledger in self.ledgers)
        groups = sum(group.first - (group.stream.void if group.stream else 0) for group in self.locksteps)
        return shards + groups + sum(stream.samples_done - stream.void for stream in self.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOrigin:
    """What a job takes over from another run's checkpoint: the passes to continue, or only the shard numbers that the
    slots already know.
    """

    checkpoint: str = ""
    """Name of the checkpoint, for messages; empty for a job that begins anew."""
    passes: int = 0
    """Number of passes that came with the checkpoint. With new data, there are none."""
    next_shard: int = 0
    """First shard number of the job's own passes. Slots skip batches of lower numbers, which they have applied."""
    in_step: bool = False
    """True if a bsp group made the checkpoint, so that the dense model is in the group's table."""
    samples_before: int = 0
    """Number of samples that earlier runs trained with other data."""


class Passes:
    """All passes so far, in the order of opening."""

    passes: list[PassLedger]

    def totals(self) -> Totals:
        return sum((ledger.totals() for ledger in self.passes), Totals())

    def poisoned(self) -> tuple[Poisoned, ...]:
        """Return the ranges that were given up, with their errors."""
        return tuple(poisoned for ledger in self.shared() for poisoned in ledger.poisoned)

    def leases(self) -> tuple[tuple[DatasetCard, LeaseKey, ShardLease], ...]:
        return tuple((ledger.card, key, lease) for ledger in self.ledgers() for key, lease in ledger.leases.items())

    def shard_states(self) -> str:
        """Return one letter for each shard of all passes that are not streams: p pending, l leased, d done, x given
        up. A partly trained shard counts as pending or leased."""
        return "".join(
            ledger.shard_states() for ledger in self.passes if not isinstance(ledger, StreamLedger | BspStreamLedger)
        )

    @property
    def samples_done(self) -> int:
        """Trained samples of all passes, plus stream offsets without a record to train."""
        return sum(ledger.samples_done for ledger in self.passes)

    @property
    def samples_trained(self) -> int:
        return self.samples_done - sum(ledger.void for ledger in self.passes)

    @property
    def todo_samples(self) -> int:
        """Samples of shards that no worker holds."""
        return sum(ledger.todo.samples for ledger in self.ledgers())

    def flows(self) -> list[StreamLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, StreamLedger)]

    def bsp_stream(self, card: DatasetCard) -> BspStreamLedger | None:
        for ledger in reversed(self.passes):
            if isinstance(ledger, BspStreamLedger) and ledger.card == card:
                return ledger
        return None

    def cuts_of(self, grants: Sequence[Grant]) -> tuple[BatchCut, ...]:
        """Return the cuts within these leases, for leases of a stream."""
        ledger = self.of_shard(grants[0].shard) if grants else None
        return ledger.cuts_of(grants) if isinstance(ledger, StreamLedger) else ()

    @property
    def on_stream(self) -> bool:
        return any(ledger.card.stream is not None for ledger in self.passes)

    @property
    def in_step(self) -> bool:
        """True if the workers train in lockstep (bsp)."""
        return any(ledger.card.in_step for ledger in self.passes)

    @property
    def epochs(self) -> int:
        return sum(ledger.card.epochs for ledger in self.passes)

    def ledgers(self) -> list[AsyncLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, AsyncLedger)]

    def shared(self) -> list[AsyncLedger | StreamLedger]:
        """Return the passes in which a worker can take over another worker's samples."""
        return [ledger for ledger in self.passes if not isinstance(ledger, BspLedger)]

    def locksteps(self) -> list[BspLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, BspLedger)]

    def of_shard(self, shard: int) -> PassLedger | None:
        for ledger in reversed(self.passes):
            if ledger.base <= shard < ledger.base + ledger.numbers:
                return ledger
        return None


class HolderRegistry(msgspec.Struct):
    """The workers of a job, by rank."""

    expected: int
    """Expected number of workers. One call grants at most half of a fair share of the remaining work."""
    max_failures: int = 3
    """A rank counts as unable to read after this many failed reads in a row."""
    living: dict[int, int] = msgspec.field(default_factory=dict)
    """Highest incarnation of each rank that has called the ledger."""
    fenced: dict[int, int] = msgspec.field(default_factory=dict)
    """Highest fenced incarnation of each rank. The ledger ignores calls of a fenced incarnation and of all earlier
    incarnations.
    """
    halvings: dict[int, int] = msgspec.field(default_factory=dict)
    """How many times each slow rank's lease size is halved, by rank."""
    trained: dict[int, int] = msgspec.field(default_factory=dict)
    """Samples trained by each rank over all incarnations, to measure its speed."""
    read_failures: dict[int, int] = msgspec.field(default_factory=dict)
    """Number of read failures of each rank since it last trained a sample."""

    def is_here(self, rank: int) -> bool:
        return self.living.get(rank, 0) > self.fenced.get(rank, -1)

    @property
    def here(self) -> set[int]:
        """Return the ranks that can currently take work."""
        return {rank for rank, incarnation in self.living.items() if incarnation > self.fenced.get(rank, -1)}

    def add_trained(self, rank: int, samples: int) -> None:
        self.trained[rank] = self.trained.get(rank, 0) + samples
        self.read_failures.pop(rank, None)

    def add_read_failure(self, rank: int) -> None:
        self.read_failures[rank] = self.read_failures.get(rank, 0) + 1

    def should_leave_work(self, rank: int) -> bool:
        """Return True if this rank cannot read its data (because of a bad mount, for example) and another present or
        expected rank may be able to.

        Without this rule, a rank with a bad mount would fail every shard that no rank has leased.
        """
        if self.read_failures.get(rank, 0) < self.max_failures:
            return False
        return self._more_to_come or any(self.read_failures.get(other, 0) < self.max_failures for other in self.here)

    @property
    def all_failed_to_read(self) -> bool:
        """True if all expected ranks are present and each has failed to read."""
        return not self._more_to_come and all(self.read_failures.get(rank) for rank in self.here)

    @property
    def _more_to_come(self) -> bool:
        return len(self.living) < self.expected


class GroupSeats(msgspec.Struct):
    """The ranks of the bsp group. Passes number the seats from 0, in the order of `ranks`."""

    ranks: tuple[int, ...] = ()
    """Ranks in the order of their seats; empty before the first group is formed."""
    halted: bool = False
    """True from the decision to change the group until the change is carried out."""

    def seat(self, rank: int) -> int | None:
        """Return the seat of a rank. Before a group is formed, return the rank itself; return None if the rank is not
        in the group."""
        if not self.ranks:
            return rank
        return self.ranks.index(rank) if rank in self.ranks else None


def passes_back_to(passes: Iterable[PassLedger], note: JobProgress) -> list[PassLedger]:
    """Return all passes after a rollback, without leases. Passes that are missing from the checkpoint start again.

    A sample stays trained only if it is trained in both the ledger and the checkpoint, so a rollback never moves a pass
    forward. If two servers are restored from different checkpoints, the older checkpoint counts, whichever server is
    restored first. A bsp group returns exactly to the checkpoint's step, because all its slots come from that
    checkpoint. Partitions and cuts of a stream stay known, because the same offsets must give the same batches again.
    """
    noted, in_step = {state.base: state for state in note.ledgers}, {state.base: state for state in note.locksteps}
    flows = {state.base: state for state in note.flows}
    back: list[PassLedger] = []
    for ledger in passes:
        if isinstance(ledger, AsyncLedger):
            back.append(back_to(ledger, noted.get(ledger.base)))
        elif isinstance(ledger, StreamLedger):
            back.append(stream_back_to(ledger, flows.get(ledger.base)))
        else:
            back.append(resume_bsp_ledger(in_step.get(ledger.base) or ledger.note(0, 0), ledger.workers))
    return back


def passes_anew(note: JobProgress, max_failures: int, workers: int, *, saves: bool) -> list[PassLedger]:
    """Return the passes with which a new run with this many workers continues."""
    passes: list[PassLedger] = [anew(state, max_failures) for state in note.ledgers]
    passes += [resume_stream(state, max_failures, returns=saves) for state in note.flows]
    for state in note.locksteps:
        passes.append(going_on := resume_bsp_ledger(state, workers))
        if isinstance(going_on, BspStreamLedger):
            going_on.reopen()
    return sorted(passes, key=lambda ledger: ledger.base)


def caught_up(note: JobProgress, passes: Iterable[PassLedger]) -> JobProgress:
    """Add all currently known partitions and cuts of streams to a checkpoint's progress."""
    flows = {state.base: state for state in note.flows}
    noted = {state.base for state in note.ledgers} | {state.base for state in note.locksteps}
    for ledger in passes:
        if isinstance(ledger, StreamLedger):
            flows[ledger.base] = stream_caught_up(flows.get(ledger.base), ledger)
        elif ledger.base not in noted:
            break  # do not leave out the pass, because a later run opens passes in the same order
    return replace(note, flows=tuple(flows.values()))


def back_to(now: AsyncLedger, note: AsyncLedgerState | None) -> AsyncLedger:
    """Return the pass after a rollback. Without a record in the checkpoint, all samples are trained again.

    An unreadable range remains given up only if the checkpoint has given it up too. If the end of the data is known, it
    stays known.
    """
    then = (
        AsyncLedger(now.card, now.base, now.max_failures)
        if note is None
        else AsyncLedger.from_state(note, now.max_failures)
    )
    if now.todo.length is not None:
        then.end_at(now.todo.length, now.short)
    back = AsyncLedger(now.card, now.base, now.max_failures)
    running, cut = min((now.todo.running, now.todo.cut), (then.todo.running, then.todo.cut))
    back.poisoned = [given_up for given_up in now.poisoned if given_up in then.poisoned]
    spans: dict[int, list[Span]] = {}
    for piece in itertools.chain(*(untrained_ranges(ledger, given_up=back.poisoned) for ledger in (now, then))):
        if piece.running <= running:  # samples after the cursor are pending in any case
            end = piece.end if piece.running < running else min(piece.end, cut)
            spans.setdefault(piece.running, []).append(Span(piece.first, end))
    pending = [ShardRange(shard, *span) for shard in sorted(spans) for span in join_spans(spans[shard])]
    back.todo = PendingQueue(now.card, running, cut, deque(pending), length=then.todo.length)
    back.closed, back.short = now.closed, then.short
    for piece in (*back.todo.returned, *(ShardRange(p.shard - back.base, p.first, p.end) for p in back.poisoned)):
        back.left[piece.running] = back.left.get(piece.running, 0) + piece.end - piece.first
    if cut:
        back.left[running] = back.left.get(running, 0) + back.todo.size_of(running) - cut
    back.failures = {shard: dict(of) for shard, of in then.failures.items() if shard in back.left}
    back.done = running + bool(cut) - len(back.left)
    poisoned = sum(given_up.end - given_up.first for given_up in back.poisoned)
    back.samples_done = back.length - back.todo.samples - poisoned
    return back


def anew(note: AsyncLedgerState, max_failures: int) -> AsyncLedger:
    """Return the pass with which a new run continues. Leased and unreadable ranges become pending again."""
    ledger = AsyncLedger.from_state(note, max_failures)
    ledger.take_back(list(ledger.leases))
    for given_up in ledger.poisoned:
        ledger.todo.put_back(ShardRange(given_up.shard - ledger.base, given_up.first, given_up.end))
    ledger.poisoned, ledger.failures, ledger.asked_back, ledger.closed = [], {}, set(), False
    return ledger


def untrained_ranges(ledger: AsyncLedger, *, given_up: Iterable[Poisoned]) -> Iterator[ShardRange]:
    """Yield the untrained ranges of begun shards, except `given_up` ranges."""
    yield from ledger.todo.returned
    yield from ledger.todo.failed
    for lease in ledger.leases.values():
        yield ShardRange(lease.running, lease.offset, lease.end)
    for poisoned in ledger.poisoned:
        if poisoned not in given_up:
            yield ShardRange(poisoned.shard - ledger.base, poisoned.first, poisoned.end)


def stream_back_to(now: StreamLedger, note: StreamLedgerState | None) -> StreamLedger:
    """Return the pass after a rollback. Without a record in the checkpoint, all records are trained again."""
    back = StreamLedger(now.card, now.base, now.max_failures, closed=now.closed)
    back.poisoned = [given_up for given_up in now.poisoned if note is not None and given_up in note.poisoned]
    for number, known in now.partitions.items():
        then = note.partitions.get(number) if note is not None else None
        spans = list(untrained_spans(now.leases.values(), _lost(now.poisoned, back), now.base, number, known))
        if note is None or then is None:
            spans.append(Span(known.start, known.end))
        else:
            spans += untrained_spans(note.leases, _lost(note.poisoned, back), now.base, number, then)
        clipped = [Span(first, min(end, known.end)) for first, end in spans if first < known.end]
        cuts = sorted({*known.cuts, *(then.cuts if then is not None else ())})
        back.partitions[number] = Partition(known.start, known.end, join_spans(clipped), cuts, known.owner)
        if clipped:
            back.waiting.add(number)
        waiting = sum(end - first for first, end in back.partitions[number].waiting)
        back.samples_done += known.end - known.start - waiting
    back.samples_done -= sum(given_up.end - given_up.first for given_up in back.poisoned)
    back.void = min(back.samples_done, now.void, note.void) if note is not None else 0
    return back


def resume_stream(note: StreamLedgerState, max_failures: int, *, returns: bool) -> StreamLedger:
    """Return the pass with which a new run continues. The pass has no leases, and the new run asks for the stream's end
    again."""
    flow = StreamLedger.from_state(note, max_failures)
    flow.take_back(list(flow.leases))
    for given_up in flow.poisoned:
        flow.put_back(given_up.shard - flow.base, Span(given_up.first, given_up.end))
    for number, partition in flow.partitions.items():
        partition.owner, partition.tries = None, 0
        if partition.final:
            end, partition.end = partition.end, FAR
            flow.put_back(number, Span(end, FAR))
            if end % flow.card.batch_size:
                partition.cut(end)  # record this cut: some slots may already contain the batch that ends at the cut
    flow.poisoned, flow.closed, flow.floors, flow.returns = [], False, [], returns
    return flow


def stream_caught_up(note: StreamLedgerState | None, now: StreamLedger) -> StreamLedgerState:
    """Return a checkpoint's record of a stream, with all cuts and partitions that the ledger knows by now.

    Servers may copy slots after the ledger recorded its progress. The slots may therefore contain batches that were cut
    later, or batches of new partitions. A run that continues from this checkpoint must find the same batches. `note` is
    None if the pass was opened after the ledger recorded its progress.
    """
    if note is None:
        note = StreamLedgerState(
            card=now.card, base=now.base, closed=False, partitions={}, leases=(), samples_done=0, poisoned=()
        )
    partitions: dict[int, Partition] = {}
    for number, known in now.partitions.items():
        then = note.partitions.get(number)
        kept = then.copy() if then is not None else Partition(known.start, waiting=[Span(known.start, FAR)])
        ended = {known.end} if known.final and known.end % now.card.batch_size else set()
        kept.cuts = sorted({*kept.cuts, *known.cuts, *ended})
        partitions[number] = kept
    return replace(note, partitions=partitions)


def _lost(poisoned: Sequence[Poisoned], back: StreamLedger) -> list[Poisoned]:
    """Return the ranges that a rollback makes readable again, although the ledger had given them up."""
    return [given_up for given_up in poisoned if given_up not in back.poisoned]
