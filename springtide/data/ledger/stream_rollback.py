"""Pure. A pass over a stream goes back to what a checkpoint noted, or on from it in another run.

In: data/ledger/rollback.py, when slots were restored or a run is gone on from. Out: a pass that nobody holds anything
of. Only that stays trained which both know as trained, so it never goes forward. Partitions and cuts stay known:
whoever reads the same offsets again must find the same batches.
"""

from collections.abc import Sequence
from dataclasses import replace

from springtide.data.ledger.partition import Partition, Span, joined
from springtide.data.ledger.stream_ledger import Flow, FlowState, untrained
from springtide.domain.data.leases import Poisoned
from springtide.domain.data.streams import FAR


def back_to(now: Flow, note: FlowState | None) -> Flow:
    """The pass after the return to a note; without one (it was opened after it) all is to be trained again."""
    back = Flow(now.card, now.base, now.max_failures, closed=now.closed)
    back.poisoned = [each for each in now.poisoned if note is not None and each in note.poisoned]
    for number, known in now.partitions.items():
        then = note.partitions.get(number) if note is not None else None
        spans = list(untrained(now.leases.values(), _lost(now.poisoned, back), now.base, number, known))
        if note is None or then is None:
            spans.append(Span(known.start, known.end))
        else:
            spans += untrained(note.leases, _lost(note.poisoned, back), now.base, number, then)
        clipped = [Span(first, min(end, known.end)) for first, end in spans if first < known.end]
        cuts = sorted({*known.cuts, *(then.cuts if then is not None else ())})
        back.partitions[number] = Partition(known.start, known.end, joined(clipped), cuts, known.owner)
        if clipped:
            back.waiting.add(number)
        left = sum(end - first for first, end in back.partitions[number].waiting)
        left += sum(each.end - each.first for each in back.poisoned if each.shard - back.base == number)
        back.samples_done += known.end - known.start - left
    back.void = min(back.samples_done, now.void, note.void) if note is not None else 0
    return back


def anew(note: FlowState, max_failures: int, *, returns: bool) -> Flow:
    """The pass with which another run goes on: nobody holds anything, and where the stream ends is found out again."""
    flow = Flow.from_state(note, max_failures)
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


def caught_up(note: FlowState | None, now: Flow) -> FlowState:
    """A note with all cuts and partitions that are known by now; None: the pass was opened after the note.

    What servers copy for a checkpoint after it was noted may have batches in it that were cut since, or are of
    partitions that were added: another run must find the same ones.
    """
    if note is None:
        note = FlowState(
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


def _lost(poisoned: Sequence[Poisoned], back: Flow) -> list[Poisoned]:
    """What is not given up any more after the return."""
    return [each for each in poisoned if each not in back.poisoned]
