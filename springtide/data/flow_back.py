"""Pure. A pass over a stream goes back to what a checkpoint noted, or on from it in another run.

In: data/returning.py, when slots were restored or a run is gone on from. Out: a pass that nobody holds anything of.
Only that stays trained which both know as trained, so it never goes forward. Partitions and cuts stay known: whoever
reads the same offsets again must find the same batches.
"""

from collections.abc import Sequence

from springtide.data.flow import Flow, FlowState, untrained
from springtide.data.partition import Partition, Span, joined
from springtide.domain.leases import Poisoned
from springtide.domain.streams import FAR


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
    return back


def anew(note: FlowState, max_failures: int) -> Flow:
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
    flow.poisoned, flow.closed, flow.floors, flow.returns = [], False, [], True
    return flow


def _lost(poisoned: Sequence[Poisoned], back: Flow) -> list[Poisoned]:
    """What is not given up any more after the return."""
    return [each for each in poisoned if each not in back.poisoned]
