"""Finds the torch calls that all recorded forwards of a model have in common. Only these calls may move.

In: a `CallLog` for each forward. A call counts if every forward made it with the same arguments and the same kind of
result. Integer arguments may follow the batch size. Out: a `RecordedProgram`, with the values that the trainer reads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from springtide.dataworker.split.program import min_cut, value_keys
from springtide.dataworker.split.program.value_keys import InputKey, PartKey, Term, TorchCall
from springtide.dataworker.split.recorder import marked_calls, torch_functions
from springtide.dataworker.split.recorder.call_recorder import CallLog


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """Calls that every recorded forward made, in order."""

    calls: dict[int, TorchCall]
    others: tuple[TorchCall, ...]
    """Calls of the first forward that some other forward did not make."""
    read: frozenset[Term]
    """Inputs and results that the trainer reads in every cut."""
    leaf_bytes: dict[int, int]
    """Properties of the tensor inputs."""

    @property
    def free(self) -> frozenset[int]:
        """Calls that depend on no input. Data workers and trainers both run these calls, so results are not sent."""
        reached: set[Any] = set()
        for number, call in self.calls.items():
            if any(isinstance(term, InputKey) or term.call in reached for term in call.terms):
                reached.add(number)
        return frozenset(self.calls.keys() - reached)

    def original(self, term: Any) -> Any:
        """Return the term. If the value is the result of a call that returns one of its arguments, return that
        argument.
        """
        while isinstance(term, PartKey) and (same := self.calls[term.call].same_as) is not None:
            term = same
        return term

    def values(self) -> list[min_cut.CutNode]:
        """Return the program as nodes for the minimum cut: inputs, movable calls, and one reader, the trainer."""
        free = self.free
        found = [
            min_cut.CutNode(name=name(InputKey(number)), inputs=(), bytes=size, seconds=0.0, place="data")
            for number, size in self.leaf_bytes.items()
        ]
        for number, call in self.calls.items():
            if number not in free and call.same_as is None:
                found += self._of(call, free)
        ends = [term for term in self.read if self._counts(term, free)]
        last = min_cut.CutNode(name="output", inputs=self._names(ends, free), bytes=0, seconds=0.0, place="trainer")
        return [*found, last]

    def _of(self, call: TorchCall, free: frozenset[int]) -> list[min_cut.CutNode]:
        inputs = self._names(call.terms, free)
        view = call.view or not any(part.is_tensor for part in call.parts) or call.name in torch_functions.DESCRIBING
        elements = max(
            [part.elements for part in call.parts] + [self._elements(term) for term in call.terms], default=0
        )
        seconds = min_cut.estimate(torch_functions.operation(call.name), elements, view=view)
        if call.name.startswith(marked_calls.PREFIX):
            view, seconds = False, min_cut.MARKED_S
        whole = min_cut.CutNode(name="", inputs=inputs, bytes=None, seconds=seconds, place="either", view=view)
        if len(call.parts) == 1:
            return [replace(whole, name=name(PartKey(call.number, 0)), bytes=sent_bytes(call, 0))]
        parts = [
            min_cut.CutNode(
                name=name(PartKey(call.number, at)),
                inputs=(str(call.number),),
                bytes=sent_bytes(call, at),
                seconds=0.0,
                place="either",
                view=view,
            )
            for at in range(len(call.parts))
        ]
        return [replace(whole, name=str(call.number)), *parts]

    def _elements(self, term: Term) -> int:
        if isinstance(term, InputKey):
            return self.leaf_bytes.get(term.number, 0) // 8
        return self.calls[term.call].parts[term.at].elements

    def _names(self, read: Iterable[Term], free: frozenset[int]) -> tuple[str, ...]:
        originals = (self.original(term) for term in read)
        return tuple(dict.fromkeys(name(term) for term in originals if self._counts(term, free)))

    def _counts(self, term: Term, free: frozenset[int]) -> bool:
        return term.number in self.leaf_bytes if isinstance(term, InputKey) else term.call not in free


def name(term: Term) -> str:
    return f"input {term.number}" if isinstance(term, InputKey) else f"{term.call}.{term.at}"


def sent_bytes(call: TorchCall, at: int) -> int | None:
    """Return the bytes of a value on the wire; None if the value cannot be sent.

    A view cannot be sent, because a write to the view also writes to its base. A non-contiguous tensor cannot be sent
    either. A message would make the tensor contiguous, and sums over the tensor might then add up in another order.
    """
    part = call.parts[at]
    return part.bytes if part.contiguous and not (call.view and part.is_tensor) else None


def common(logs: Sequence[CallLog]) -> RecordedProgram:
    calls: dict[int, TorchCall] = {}
    for number in logs[0].calls:
        recordings = [log.calls.get(number) for log in logs]
        found = (
            _merged([call for call in recordings if call is not None], logs, calls) if None not in recordings else None
        )
        if found is not None:
            calls[number] = found
    read: set[Term] = set()
    for log in logs:
        read |= {term for term in log.escaped if _is_known(term, calls)}
        for call in log.calls.values():
            if call.number not in calls:
                read |= {term for term in call.terms if _is_known(term, calls)}
    for known_call in calls.values():
        read |= {PartKey(known_call.number, at) for at, part in enumerate(known_call.parts) if not part.is_tensor}
    others = tuple(call for call in logs[0].calls.values() if call.number not in calls)
    sizes = {
        at: leaf.numel() * leaf.element_size()
        for at, leaf in enumerate(logs[0].leaves)
        if isinstance(leaf, torch.Tensor)
    }
    program = RecordedProgram(calls, others, frozenset(read), sizes)
    return replace(program, read=frozenset(program.original(term) for term in read))


def _merged(recordings: Sequence[TorchCall], logs: Sequence[CallLog], known: dict[int, TorchCall]) -> TorchCall | None:
    """Merge a call over all forwards; return None if the forwards made different calls."""
    first = recordings[0]
    if any(isinstance(term, PartKey) and term.call not in known for term in first.terms):
        return None
    for call in recordings[1:]:
        alike = (
            call.gives,
            call.writes,
            call.returns_none,
            call.view,
            call.same_as,
            [part.kind for part in call.parts],
        )
        if alike != (
            first.gives,
            first.writes,
            first.returns_none,
            first.view,
            first.same_as,
            [part.kind for part in first.parts],
        ):
            return None
    numbers = [call.numbers for call in recordings]
    sizes = [log.size for log in logs]
    decided = value_keys.decided((first.args, first.kwargs), numbers, sizes)
    if decided is None:
        return None
    parts = tuple(
        replace(
            seen[-1],
            contiguous=all(part.contiguous for part in seen),
            bytes=max(part.bytes for part in seen),
            elements=max(part.elements for part in seen),
        )
        for seen in zip(*(call.parts for call in recordings), strict=True)
    )
    return replace(
        first,
        args=decided[0],
        kwargs=decided[1],
        parts=parts,
        rounds=any(call.rounds for call in recordings),
        numbers=(),
    )


def _is_known(term: Term, calls: dict[int, TorchCall]) -> bool:
    return isinstance(term, InputKey) or term.call in calls
