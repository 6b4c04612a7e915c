"""Pure. A ledger goes back to what a checkpoint noted: only that stays trained which both know as trained.

In: data/ledger/pass_registry.py, when slots were restored. Out: a ledger that nobody holds anything of. It never goes
forward: of two servers that were restored from different checkpoints the older note counts, in whichever order they
come. The passes of a bsp group go exactly to where the note has them: all its slots come from that checkpoint. Streams:
stream_rollback.py.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from springtide.data.ledger import stream_rollback
from springtide.data.ledger.async_ledger import Ledger, LedgerState
from springtide.data.ledger.bsp_stream_ledger import Convoy, lockstep_at
from springtide.data.ledger.passes import Pass
from springtide.data.ledger.pending import Piece, Todo
from springtide.data.ledger.snapshot import BookNote
from springtide.data.ledger.stream_ledger import Flow
from springtide.domain.data.leases import Poisoned


def passes_back_to(passes: Iterable[Pass], note: BookNote) -> list[Pass]:
    """All passes after a return to what a checkpoint noted of them; those it does not know begin anew."""
    noted, in_step = {state.base: state for state in note.ledgers}, {state.base: state for state in note.locksteps}
    flows = {state.base: state for state in note.flows}
    back: list[Pass] = []
    for one in passes:
        if isinstance(one, Ledger):
            back.append(back_to(one, noted.get(one.base)))
        elif isinstance(one, Flow):
            back.append(stream_rollback.back_to(one, flows.get(one.base)))
        else:
            back.append(lockstep_at(in_step.get(one.base) or one.note(0, 0), one.workers))
    return back


def passes_anew(note: BookNote, max_failures: int, workers: int, *, saves: bool) -> list[Pass]:
    """The passes with which another run of so many workers goes on, with checkpoints of its own or without."""
    passes: list[Pass] = [anew(state, max_failures) for state in note.ledgers]
    passes += [stream_rollback.anew(state, max_failures, returns=saves) for state in note.flows]
    for state in note.locksteps:
        passes.append(going_on := lockstep_at(state, workers))
        if isinstance(going_on, Convoy):
            going_on.reopen()
    return sorted(passes, key=lambda one: one.base)


def caught_up(note: BookNote, passes: Iterable[Pass]) -> BookNote:
    """The note of a checkpoint whose slots are copied: what is known of streams by now belongs to it."""
    flows = {state.base: state for state in note.flows}
    noted = {state.base for state in note.ledgers} | {state.base for state in note.locksteps}
    for one in passes:
        if isinstance(one, Flow):
            flows[one.base] = stream_rollback.caught_up(flows.get(one.base), one)
        elif one.base not in noted:
            break  # passes of another run come in the same order: none can be left out
    return replace(note, flows=tuple(flows.values()))


def back_to(now: Ledger, note: LedgerState | None) -> Ledger:
    """The ledger after the return. Without a note (the pass was opened after it) all is to be trained again.

    What cannot be read stays given up only where the note says so too; where the data ends, once known, stays known.
    """
    then = Ledger(now.card, now.base, now.max_failures) if note is None else Ledger.from_state(note, now.max_failures)
    if now.todo.length is not None and then.todo.length is None:
        then.end_at(now.todo.length)
    back = Ledger(now.card, now.base, now.max_failures)
    running, cut = min((now.todo.running, now.todo.cut), (then.todo.running, then.todo.cut))
    back.poisoned = [each for each in now.poisoned if each in then.poisoned]
    spans = sorted(
        clipped
        for ledger in (now, then)
        for piece in untrained(ledger, given_up=back.poisoned)
        if (clipped := before(piece, running, cut)).first < clipped.end
    )
    back.todo = Todo(now.card, running, cut, deque(joined(spans)), length=then.todo.length)
    back.closed = now.closed
    for piece in (*back.todo.returned, *(Piece(p.shard - back.base, p.first, p.end) for p in back.poisoned)):
        back.left[piece.running] = back.left.get(piece.running, 0) + piece.end - piece.first
    if cut:
        back.left[running] = back.left.get(running, 0) + back.todo.size_of(running) - cut
    back.failures = {shard: dict(of) for shard, of in then.failures.items() if shard in back.left}
    back.done = running + bool(cut) - len(back.left)
    poisoned = sum(each.end - each.first for each in back.poisoned)
    back.samples_done = back.length - back.todo.samples - poisoned
    return back


def anew(note: LedgerState, max_failures: int) -> Ledger:
    """The ledger with which another run goes on: what was held, and what could not be read, is to be handed out."""
    ledger = Ledger.from_state(note, max_failures)
    ledger.take_back(list(ledger.leases))
    for each in ledger.poisoned:
        ledger.todo.put_back(Piece(each.shard - ledger.base, each.first, each.end))
    ledger.poisoned, ledger.failures, ledger.asked_back, ledger.closed = [], {}, set(), False
    return ledger


def untrained(ledger: Ledger, *, given_up: Iterable[Poisoned]) -> Iterator[Piece]:
    """What of the shards that were handed out is not trained; `given_up` is left out."""
    yield from ledger.todo.returned
    yield from ledger.todo.failed
    for lease in ledger.leases.values():
        yield Piece(lease.running, lease.offset, lease.end)
    for each in ledger.poisoned:
        if each not in given_up:
            yield Piece(each.shard - ledger.base, each.first, each.end)


def before(piece: Piece, running: int, cut: int) -> Piece:
    """The part of a piece that lies before a place; it may be empty."""
    if piece.running < running:
        return piece
    end = min(piece.end, cut) if piece.running == running else piece.first
    return Piece(piece.running, piece.first, max(piece.first, end))


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Sorted pieces without overlaps."""
    for running, group in itertools.groupby(pieces, key=lambda piece: piece.running):
        first = end = -1
        for piece in group:
            if piece.first > end and end >= 0:
                yield Piece(running, first, end)
                first = -1
            first, end = (piece.first if first < 0 else first), max(end, piece.end)
        yield Piece(running, first, end)
