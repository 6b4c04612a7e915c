"""Pure. Roll a job's passes back to a checkpoint, or continue them in another run.

In: data/ledger/job_ledger.py, after slots were restored or when a run is resumed. Out: passes without leases.

A sample stays trained only if both the ledger and the checkpoint have it as trained, so a rollback never moves a pass
forward. If two servers are restored from different checkpoints, the older checkpoint counts, in either order.

A bsp group returns exactly to the checkpoint's step, because all its slots come from that checkpoint. Partitions and
cuts of a stream stay known, because the same offsets must give the same batches again.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from springtide.data.ledger.async_ledger import AsyncLedger, AsyncLedgerState, PendingQueue, ShardRange
from springtide.data.ledger.bsp_stream_ledger import BspStreamLedger, resume_bsp_ledger
from springtide.data.ledger.passes import JobProgress, PassLedger
from springtide.data.ledger.stream_ledger import (
    Partition,
    Span,
    StreamLedger,
    StreamLedgerState,
    join_spans,
    untrained_spans,
)
from springtide.domain.data.leases import Poisoned
from springtide.domain.data.streams import FAR


def passes_back_to(passes: Iterable[PassLedger], note: JobProgress) -> list[PassLedger]:
    """Return all passes after a rollback. Passes that the checkpoint does not have start again."""
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
    """Return the passes with which another run of this many workers continues."""
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
            break  # another run opens passes in the same order, so none can be left out
    return replace(note, flows=tuple(flows.values()))


def back_to(now: AsyncLedger, note: AsyncLedgerState | None) -> AsyncLedger:
    """Return the pass after a rollback. Without a record in the checkpoint, all samples are trained again.

    Unreadable ranges stay given up only if the checkpoint has them too. A known end of the data stays known.
    """
    then = (
        AsyncLedger(now.card, now.base, now.max_failures)
        if note is None
        else AsyncLedger.from_state(note, now.max_failures)
    )
    if now.todo.length is not None and then.todo.length is None:
        then.end_at(now.todo.length)
    back = AsyncLedger(now.card, now.base, now.max_failures)
    running, cut = min((now.todo.running, now.todo.cut), (then.todo.running, then.todo.cut))
    back.poisoned = [given_up for given_up in now.poisoned if given_up in then.poisoned]
    spans = sorted(
        clipped
        for ledger in (now, then)
        for piece in untrained_ranges(ledger, given_up=back.poisoned)
        if (clipped := before(piece, running, cut)).first < clipped.end
    )
    back.todo = PendingQueue(now.card, running, cut, deque(join_ranges(spans)), length=then.todo.length)
    back.closed = now.closed
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
    """Return the pass with which another run continues; leased and unreadable ranges are pending again."""
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


def before(piece: ShardRange, running: int, cut: int) -> ShardRange:
    """Return the part of a range before a position; the part may be empty."""
    if piece.running < running:
        return piece
    end = min(piece.end, cut) if piece.running == running else piece.first
    return ShardRange(piece.running, piece.first, max(piece.first, end))


def join_ranges(pieces: Iterable[ShardRange]) -> Iterator[ShardRange]:
    """Merge overlapping and adjacent ranges, sorted."""
    for running, group in itertools.groupby(pieces, key=lambda piece: piece.running):
        first = end = -1
        for piece in group:
            if piece.first > end and end >= 0:
                yield ShardRange(running, first, end)
                first = -1
            first, end = (piece.first if first < 0 else first), max(end, piece.end)
        yield ShardRange(running, first, end)


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
        left = sum(end - first for first, end in back.partitions[number].waiting)
        left += sum(given_up.end - given_up.first for given_up in back.poisoned if given_up.shard - back.base == number)
        back.samples_done += known.end - known.start - left
    back.void = min(back.samples_done, now.void, note.void) if note is not None else 0
    return back


def resume_stream(note: StreamLedgerState, max_failures: int, *, returns: bool) -> StreamLedger:
    """Return the pass with which another run continues: no leases, and the stream's end is determined again."""
    flow = StreamLedger.from_state(note, max_failures)
    flow.take_back(list(flow.leases))
    for given_up in flow.poisoned:
        flow.put_back(given_up.shard - flow.base, Span(given_up.first, given_up.end))
    for number, partition in flow.partitions.items():
        partition.owner, partition.failed_at, partition.tries = None, -1, 0
        if partition.final:
            end, partition.end = partition.end, FAR
            flow.put_back(number, Span(end, FAR))
            if end % flow.card.batch_size:
                partition.cut(end)  # some slots may have the last batch before this cut, so the cut must stay
    flow.poisoned, flow.closed, flow.floors, flow.returns = [], False, [], returns
    return flow


def stream_caught_up(note: StreamLedgerState | None, now: StreamLedger) -> StreamLedgerState:
    """Return a checkpoint's record with all cuts and partitions that are known now.

    Servers may copy slots after the record was taken. These slots may contain batches that were cut later, or batches
    of new partitions. Another run must find the same batches. `note` is None if the pass was opened after the record.
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
    """Return the ranges that are no longer given up after a rollback."""
    return [given_up for given_up in poisoned if given_up not in back.poisoned]
