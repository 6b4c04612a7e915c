"""Pure. A ledger goes back to what a checkpoint noted: only that stays trained which both know as trained.

In: data/ledger/job_ledger.py, when slots were restored. Out: a ledger that nobody holds anything of. It never goes
forward: of two servers that were restored from different checkpoints the older note counts, in whichever order they
come. The passes of a bsp group go exactly to where the note has them: all its slots come from that checkpoint. Streams:
stream_rollback.py.
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
    """All passes after a return to what a checkpoint noted of them; those it does not know begin anew."""
    noted, in_step = {state.base: state for state in note.ledgers}, {state.base: state for state in note.locksteps}
    flows = {state.base: state for state in note.flows}
    back: list[PassLedger] = []
    for one in passes:
        if isinstance(one, AsyncLedger):
            back.append(back_to(one, noted.get(one.base)))
        elif isinstance(one, StreamLedger):
            back.append(stream_back_to(one, flows.get(one.base)))
        else:
            back.append(resume_bsp_ledger(in_step.get(one.base) or one.note(0, 0), one.workers))
    return back


def passes_anew(note: JobProgress, max_failures: int, workers: int, *, saves: bool) -> list[PassLedger]:
    """The passes with which another run of so many workers goes on, with checkpoints of its own or without."""
    passes: list[PassLedger] = [anew(state, max_failures) for state in note.ledgers]
    passes += [resume_stream(state, max_failures, returns=saves) for state in note.flows]
    for state in note.locksteps:
        passes.append(going_on := resume_bsp_ledger(state, workers))
        if isinstance(going_on, BspStreamLedger):
            going_on.reopen()
    return sorted(passes, key=lambda one: one.base)


def caught_up(note: JobProgress, passes: Iterable[PassLedger]) -> JobProgress:
    """The note of a checkpoint whose slots are copied: what is known of streams by now belongs to it."""
    flows = {state.base: state for state in note.flows}
    noted = {state.base for state in note.ledgers} | {state.base for state in note.locksteps}
    for one in passes:
        if isinstance(one, StreamLedger):
            flows[one.base] = stream_caught_up(flows.get(one.base), one)
        elif one.base not in noted:
            break  # passes of another run come in the same order: none can be left out
    return replace(note, flows=tuple(flows.values()))


def back_to(now: AsyncLedger, note: AsyncLedgerState | None) -> AsyncLedger:
    """The ledger after the return. Without a note (the pass was opened after it) all is to be trained again.

    What cannot be read stays given up only where the note says so too; where the data ends, once known, stays known.
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
    back.poisoned = [each for each in now.poisoned if each in then.poisoned]
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
    poisoned = sum(each.end - each.first for each in back.poisoned)
    back.samples_done = back.length - back.todo.samples - poisoned
    return back


def anew(note: AsyncLedgerState, max_failures: int) -> AsyncLedger:
    """The ledger with which another run goes on: what was held, and what could not be read, is to be handed out."""
    ledger = AsyncLedger.from_state(note, max_failures)
    ledger.take_back(list(ledger.leases))
    for each in ledger.poisoned:
        ledger.todo.put_back(ShardRange(each.shard - ledger.base, each.first, each.end))
    ledger.poisoned, ledger.failures, ledger.asked_back, ledger.closed = [], {}, set(), False
    return ledger


def untrained_ranges(ledger: AsyncLedger, *, given_up: Iterable[Poisoned]) -> Iterator[ShardRange]:
    """What of the shards that were handed out is not trained; `given_up` is left out."""
    yield from ledger.todo.returned
    yield from ledger.todo.failed
    for lease in ledger.leases.values():
        yield ShardRange(lease.running, lease.offset, lease.end)
    for each in ledger.poisoned:
        if each not in given_up:
            yield ShardRange(each.shard - ledger.base, each.first, each.end)


def before(piece: ShardRange, running: int, cut: int) -> ShardRange:
    """The part of a piece that lies before a place; it may be empty."""
    if piece.running < running:
        return piece
    end = min(piece.end, cut) if piece.running == running else piece.first
    return ShardRange(piece.running, piece.first, max(piece.first, end))


def join_ranges(pieces: Iterable[ShardRange]) -> Iterator[ShardRange]:
    """Sorted pieces without overlaps."""
    for running, group in itertools.groupby(pieces, key=lambda piece: piece.running):
        first = end = -1
        for piece in group:
            if piece.first > end and end >= 0:
                yield ShardRange(running, first, end)
                first = -1
            first, end = (piece.first if first < 0 else first), max(end, piece.end)
        yield ShardRange(running, first, end)


def stream_back_to(now: StreamLedger, note: StreamLedgerState | None) -> StreamLedger:
    """The pass after the return to a note; without one (it was opened after it) all is to be trained again."""
    back = StreamLedger(now.card, now.base, now.max_failures, closed=now.closed)
    back.poisoned = [each for each in now.poisoned if note is not None and each in note.poisoned]
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
        left += sum(each.end - each.first for each in back.poisoned if each.shard - back.base == number)
        back.samples_done += known.end - known.start - left
    back.void = min(back.samples_done, now.void, note.void) if note is not None else 0
    return back


def resume_stream(note: StreamLedgerState, max_failures: int, *, returns: bool) -> StreamLedger:
    """The pass with which another run goes on: nobody holds anything, and where the stream ends is found out again."""
    flow = StreamLedger.from_state(note, max_failures)
    flow.take_back(list(flow.leases))
    for each in flow.poisoned:
        flow.put_back(each.shard - flow.base, Span(each.first, each.end))
    for number, partition in flow.partitions.items():
        partition.owner, partition.failed_at, partition.tries = None, -1, 0
        if partition.final:
            end, partition.end = partition.end, FAR
            flow.put_back(number, Span(end, FAR))
            if end % flow.card.batch_size:
                partition.cut(end)  # the last batch before it may be in some slots: it stays as it was
    flow.poisoned, flow.closed, flow.floors, flow.returns = [], False, [], returns
    return flow


def stream_caught_up(note: StreamLedgerState | None, now: StreamLedger) -> StreamLedgerState:
    """A note with all cuts and partitions that are known by now; None: the pass was opened after the note.

    What servers copy for a checkpoint after it was noted may have batches in it that were cut since, or are of
    partitions that were added: another run must find the same ones.
    """
    if note is None:
        note = StreamLedgerState(
            card=now.card, base=now.base, closed=False, partitions={}, leases=(), samples_done=0, poisoned=()
        )  # fmt: skip
    partitions: dict[int, Partition] = {}
    for number, known in now.partitions.items():
        then = note.partitions.get(number)
        kept = then.copy() if then is not None else Partition(known.start, waiting=[Span(known.start, FAR)])
        ended = {known.end} if known.final and known.end % now.card.batch_size else set()
        kept.cuts = sorted({*kept.cuts, *known.cuts, *ended})
        partitions[number] = kept
    return replace(note, partitions=partitions)


def _lost(poisoned: Sequence[Poisoned], back: StreamLedger) -> list[Poisoned]:
    """What is not given up any more after the return."""
    return [each for each in poisoned if each not in back.poisoned]
