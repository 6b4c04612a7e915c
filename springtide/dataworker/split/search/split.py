"""Split a model's forward into a part for data workers and a part for the trainer.

In: recorded torch calls of some forwards of the training loop (dataworker/split/recorder/call_recorder.py).

1. `recorded_program` finds the calls that all forwards have in common.
2. dataworker/split/program/min_cut.py cuts them.
3. The moved calls become programs for data workers (`moved_program`), in stages by device.
4. The trainer runs the user's own forward and replays the moved calls (`call_replay`).

The program runs once here, and its results must equal forward's own results bit by bit. Apart from marked functions, no
user code runs. Out: `Split`, or `Unsplit` with the reason. Called by: worker/split/controller.py.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from springtide.dataworker.feed.worker import PipelineStage
from springtide.dataworker.processes import job_package
from springtide.dataworker.split.program import min_cut, recorded_program, value_keys
from springtide.dataworker.split.program.call_replay import CallReplay
from springtide.dataworker.split.program.known_calls import KnownCall, KnownPart
from springtide.dataworker.split.program.moved_program import (
    Instruction,
    LeafKind,
    MovedProgram,
    encoded,
    leaf_terms,
    this_machine,
)
from springtide.dataworker.split.program.recorded_program import RecordedProgram, name
from springtide.dataworker.split.program.value_keys import ContentKey, InputKey, PartKey, Term, contents_in
from springtide.dataworker.split.recorder import bit_compare, marked_calls, torch_functions
from springtide.dataworker.split.recorder.call_recorder import CallBook, CallLog, RecordedCall, batch_size
from springtide.dataworker.split.recorder.marked_calls import MarkedCode
from springtide.dataworker.split.search import report_builder
from springtide.dataworker.split.search.report import Explanation
from springtide.dataworker.split.search.result import Split, Unsplit

__all__ = ["Label", "Split", "Unsplit", "split"]

Label = Callable[[RecordedCall], str]
"""Function that returns the device label of a call."""
TIMES = 3  # runs of the moved part; the fastest counts, because other processes share the cores


def split(
    book: CallBook, logs: Sequence[CallLog], *, forward_s: float = 0.0, label: Label | None = None
) -> Split | Unsplit:
    """Split the forward that these logs recorded. The last log has kept its values.

    forward_s: duration of a forward, for the report.
    label: names the device of a call, if it differs from the recorded device.
    """
    program = recorded_program.common(logs)
    chosen = min_cut.choose(program.values())
    moved = _moved(program, chosen)
    if not moved:
        return Unsplit(report_builder.tell(book, logs, program, chosen, forward_s, moved=()))
    crossing = _crossing(program, moved)
    label = label or _device
    code = _marked(book, program, moved)
    stages = _stages(book, logs[-1], program, moved, crossing, label, code)
    why = job_package.unsendable(stages) or _differs(stages, logs[-1], program, crossing)
    if why:
        return Unsplit(Explanation(why=why))
    kinds = [(one.dtype, str(one.device)) if isinstance(one, torch.Tensor) else None for one in logs[0].leaves]
    known = _known(program, moved, crossing)
    live = MarkedCode(code.functions, {path: book.modules[path] for path in code.owners})
    answering = CallReplay(known, _constants(book, program, moved), kinds, len(crossing), live)
    told = report_builder.tell(
        book,
        logs,
        program,
        chosen,
        forward_s,
        moved=[program.calls[one] for one in moved],
        moved_s=_seconds(stages, logs[-1]),
        stages=stages,
        crossing=crossing,
    )
    rounds = any(program.calls[one].rounds for one in moved)
    return Split(
        stages,
        answering,
        _needs(program, moved),
        told,
        _digest(stages, logs[0]),
        torch.get_num_threads() if rounds else 0,
    )


def _moved(program: RecordedProgram, chosen: min_cut.ProgramCut) -> list[int]:
    """Return the numbers of the calls that move, in order."""
    return [
        number
        for number, call in program.calls.items()
        if call.same_as is None and (str(number) in chosen.moved or name(PartKey(number, 0)) in chosen.moved)
    ]


def _crossing(program: RecordedProgram, moved: Sequence[int]) -> list[PartKey]:
    """Return the moved results that the trainer or a remaining call reads."""
    here = set(moved)
    read = set(program.read)
    for number, call in program.calls.items():
        if number not in here and number not in program.free:
            read |= {program.original(one) for one in call.terms}
    return [
        PartKey(number, at)
        for number in moved
        for at in range(len(program.calls[number].parts))
        if PartKey(number, at) in read
    ]


def _needs(program: RecordedProgram, moved: Sequence[int]) -> frozenset[int]:
    """Return the inputs that the trainer reads."""
    here, read = set(moved), {one for one in program.read if isinstance(one, InputKey)}
    for number, call in program.calls.items():
        if number not in here and call.same_as is None:
            read |= {one for one in call.terms if isinstance(one, InputKey)}
    return frozenset(one.number for one in read)


def _with_free(program: RecordedProgram, moved: Sequence[int]) -> list[int]:
    """Return the moved calls and the input-independent calls that they read, in program order."""
    wanted, queue = set(moved), list(moved)
    while queue:
        for term in program.calls[queue.pop()].terms:
            origin = program.original(term)
            if isinstance(origin, PartKey) and origin.call in program.free and origin.call not in wanted:
                wanted.add(origin.call)
                queue.append(origin.call)
    return [number for number in program.calls if number in wanted]


def _marked(book: CallBook, program: RecordedProgram, moved: Sequence[int]) -> MarkedCode:
    """Return the marked functions among the moved calls, with copies of the modules that own them."""
    calls = [program.calls[number] for number in moved if program.calls[number].name in book.functions]
    paths = {one.path for call in calls for one in value_keys.owners_in((call.args, call.kwargs or ()))}
    owners = {path: marked_calls.without_parameters(book.modules[path]) for path in sorted(paths)}
    return MarkedCode({call.name: book.functions[call.name] for call in calls}, owners)


def _stages(
    book: CallBook,
    log: CallLog,
    program: RecordedProgram,
    moved: Sequence[int],
    crossing: Sequence[PartKey],
    label: Label,
    code: MarkedCode,
) -> tuple[PipelineStage, ...]:
    """Build a program for each stage. Each program passes on the values that later stages or the trainer read."""
    groups = _grouped(program, moved, label)
    takes: tuple[Term, ...] = leaf_terms(len(log.leaves))
    rounds = any(program.calls[one].rounds for one in moved)
    floats = any(part.is_tensor and part.kind.is_floating_point for one in moved for part in program.calls[one].parts)
    made = []
    sized_by, _ = batch_size(log.leaves)
    for at, own in enumerate(groups):
        later = [number for group in groups[at + 1 :] for number in _with_free(program, group)]
        read = {program.original(term) for number in later for term in program.calls[number].terms}
        have = [*takes, *(PartKey(number, part) for number in own for part in range(len(program.calls[number].parts)))]
        size = InputKey(sized_by)
        last = at == len(groups) - 1
        gives = tuple(crossing) if last else tuple(one for one in have if one in read or one in crossing or one == size)
        calls = [program.calls[number] for number in _with_free(program, own)]
        instructions = tuple(_alive([_instruction(program, one) for one in calls], gives))
        kinds = (
            {
                term.number: LeafKind(log.leaves[term.number].dtype, log.leaves[term.number].dim())
                for one in instructions
                for term in one.terms
                if isinstance(term, InputKey) and isinstance(log.leaves[term.number], torch.Tensor)
            }
            if at == 0
            else {}
        )
        run = MovedProgram(
            instructions,
            takes,
            gives,
            {one: book.constants[one] for call in calls for one in _contents(call)},
            kinds,
            max(0, takes.index(size)) if size in takes else 0,
            torch.get_num_threads() if rounds else 0,
            this_machine() if floats else "",
            _devices(program, have),
            code if any(one.name in code.functions for one in instructions) else MarkedCode(),
        )
        device: Any = "cuda" if label(program.calls[own[0]]) == "cuda" else "cpu"
        made.append(PipelineStage(f"forward-{at}", run, device))
        takes = gives
    return tuple(made)


def _alive(instructions: list[Instruction], gives: Sequence[Term]) -> list[Instruction]:
    """Return the instructions that contribute to the given results."""
    wanted, found = set(gives), list[Instruction]()
    for one in reversed(instructions):
        if any(PartKey(one.number, at) in wanted for at in range(one.parts)):
            wanted |= set(one.terms)
            found.append(one)
    return found[::-1]


def _instruction(program: RecordedProgram, call: RecordedCall) -> Instruction:
    args, kwargs = value_keys.replaced(
        (call.args, call.kwargs), lambda one: program.original(one) if isinstance(one, InputKey | PartKey) else one
    )
    return Instruction(
        number=call.number,
        name=call.name,
        args=args,
        kwargs=kwargs,
        parts=len(call.parts),
        writes=call.writes,
        rounds=call.rounds,
        line=call.line,
        text=call.text,
    )


def _grouped(program: RecordedProgram, moved: Sequence[int], label: Label) -> list[list[int]]:
    """Group the calls into stages of a single device. A stage takes all calls of its device whose inputs are ready."""
    left, done, found, known = list(moved), set[int](), list[list[int]](), set(moved)

    def ready(number: int) -> bool:
        origins = (program.original(one) for one in program.calls[number].terms)
        return all(one.call in done or one.call not in known for one in origins if isinstance(one, PartKey))

    while left:
        first = [label(program.calls[number]) for number in left if ready(number)]
        device = min(first, key=lambda one: (one != "cpu", one))
        stage: list[int] = []
        for number in left:
            if label(program.calls[number]) == device and ready(number):
                stage.append(number)
                done.add(number)
        left = [number for number in left if number not in done]
        found.append(stage)
    return found


def _device(call: RecordedCall) -> str:
    return next((part.device.partition(":")[0] for part in call.parts if part.device != "cpu"), "cpu")


def _devices(program: RecordedProgram, have: Sequence[Term]) -> dict[Term, str]:
    parts = {one: program.calls[one.call].parts[one.at].device for one in have if isinstance(one, PartKey)}
    return {term: device for term, device in parts.items() if device != "cpu"}


def _contents(call: RecordedCall) -> list[ContentKey]:
    return list(contents_in((call.args, call.kwargs or ())))


def _constants(book: CallBook, program: RecordedProgram, moved: Sequence[int]) -> dict[ContentKey, torch.Tensor]:
    calls = [program.calls[number] for number in _with_free(program, moved)]
    return {one: book.constants[one] for call in calls for one in _contents(call)}


def _known(program: RecordedProgram, moved: Sequence[int], crossing: Sequence[PartKey]) -> list[KnownCall]:
    """Return the moved calls as forward() makes them, including calls that return their own argument."""
    places = {part: at for at, part in enumerate(crossing)}
    here = set(_with_free(program, moved))
    known: list[KnownCall] = []
    for number, call in program.calls.items():
        origin = program.original(call.same_as) if call.same_as is not None else None
        aliased = isinstance(origin, InputKey) or (isinstance(origin, PartKey) and origin.call in here)
        if number not in here and not aliased:
            continue
        args, kwargs = value_keys.replaced(
            (call.args, call.kwargs), lambda one: program.original(one) if isinstance(one, InputKey | PartKey) else one
        )
        parts = tuple(
            KnownPart(part.kind, places.get(PartKey(number, at), -1), part.device) for at, part in enumerate(call.parts)
        )
        known.append(
            KnownCall(
                number=number,
                name=call.name,
                args=args,
                kwargs=kwargs,
                gives=call.gives,
                parts=parts,
                writes=call.writes,
                returns_none=call.returns_none,
                view=call.view,
                same_as=origin,
                free=number in program.free,
                line=call.line,
            )
        )
    return known


def _differs(
    stages: Sequence[PipelineStage], log: CallLog, program: RecordedProgram, crossing: Sequence[PartKey]
) -> str:
    """Run the moved part alone, and return how it differs from forward's results; empty if all bits are equal."""
    made: Any = list(log.leaves)
    for stage in stages:
        run: Any = stage.run
        try:
            made = run(made)
        except Exception as error:  # for example, a marked function that reads a parameter
            return f"the moved part does not run by itself: {type(error).__name__}: {error}"
        if made is None:
            return f"the moved part does not run by itself: {run.why}"
    for part, value in zip(crossing, made, strict=True):
        call = program.calls[part.call]
        seen = log.calls[part.call].parts[part.at]
        equal = bit_compare.same(seen.value, value) if seen.is_tensor else encoded(seen.value) == value
        if not equal:
            return (
                f"{torch_functions.operation(call.name)} of {call.line or 'forward()'} gives other bits by itself than "
                "in forward()"
            )
    return ""


def _seconds(stages: Sequence[PipelineStage], log: CallLog) -> float:
    """Measure the moved part: the fastest of some runs, or a single run if it contains user code."""
    least, marked = float("inf"), any(stage.run.marked.functions for stage in stages)  # type: ignore[attr-defined]
    for _ in range(1 if marked else TIMES):
        made: Any = list(log.leaves)
        began = time.perf_counter()
        for stage in stages:
            made = stage.run(made)
        least = min(least, time.perf_counter() - began)
    return least


def _digest(stages: Sequence[PipelineStage], log: CallLog) -> str:
    told = hashlib.sha256(str(len(log.leaves)).encode())
    runs: list[Any] = [stage.run for stage in stages]
    numbers: dict[int, int] = {}
    for run in runs:
        for one in run.instructions:
            numbers.setdefault(one.number, len(numbers))

    def renumbered(term: Any) -> Any:
        return PartKey(numbers[term.call], term.at) if isinstance(term, PartKey) else term

    for stage, run in zip(stages, runs, strict=True):
        for one in run.instructions:
            told.update(f"{one.name} {value_keys.replaced((one.args, one.kwargs), renumbered)!r}".encode())
        for function in run.marked.functions.values():
            told.update(function.__code__.co_code)
        told.update(f"{stage.device} {run.threads} {run.machine} {[renumbered(term) for term in run.gives]}".encode())
    return told.hexdigest()[:32]
