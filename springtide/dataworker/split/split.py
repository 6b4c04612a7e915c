"""Splits a model's forward into a part for data workers and a part for the trainer.

In: recorded torch calls of some forwards of the training loop. `recorded_program` finds the calls that all forwards
have in common, `min_cut` splits these calls. Out: `Split`, with programs for data workers (`moved_program`) and the
trainer's replay (`call_replay`), or `Unsplit` with the reason. Apart from marked functions, no user code runs.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from springtide.dataworker.feed.worker import PipelineStage
from springtide.dataworker.processes import job_package
from springtide.dataworker.split.program import min_cut, recorded_program, value_keys
from springtide.dataworker.split.program.call_replay import CallReplay
from springtide.dataworker.split.program.moved_program import LeafKind, MovedProgram, encoded, this_machine
from springtide.dataworker.split.program.recorded_program import name
from springtide.dataworker.split.program.value_keys import (
    ContentKey,
    InputKey,
    OwnerKey,
    PartKey,
    PlainKey,
    Term,
    TimesKey,
    TorchCall,
)
from springtide.dataworker.split.recorder import bit_compare, marked_calls, torch_functions
from springtide.dataworker.split.recorder.call_recorder import CallBook, CallLog, batch_size
from springtide.dataworker.split.recorder.marked_calls import MarkedCode
from springtide.dataworker.split.report import Explanation, Guard, OperationGroup

TIMES = 3  # number of timed runs of the moved part; the fastest run counts, because other processes share the cores
CHEAPER = "its result is cheaper to compute than to send"
CHANGING = "its arguments change from batch to batch"
MARK = "To move a function of yours that depends only on its arguments, mark it @springtide.stateless"
SILENT = ("getitem", "size", "shape")
UNTOLD = ("size", "shape", "set_grad_enabled")
ALWAYS = (
    Guard(
        what="all bits of the inputs of forward()",
        breaks="a write of the loop to its batch, or a request for an input's gradient",
    ),
    Guard(
        what="training mode, autocast, default dtype, number of threads, torch modes",
        breaks="a value that differs from its value at the split",
    ),
    Guard(
        what="all other Python state that forward() reads",
        breaks="nothing: forward() itself runs for every batch and reads the current state",
    ),
)


@dataclass(frozen=True, slots=True)
class Split:
    """A forward in two parts."""

    stages: tuple[PipelineStage, ...]
    """Programs for data workers. The first program takes the list of input leaves. Each later program takes the list of
    the previous program. The last list goes to the trainer. A program returns None if the batch differs from the
    recording; the trainer then runs the model's own forward.
    """
    answering: CallReplay
    """Replay that runs the model's own forward with the values from data workers."""
    needs: frozenset[int]
    """Numbers of the input leaves that the trainer still reads."""
    explanation: Explanation
    digest: str
    """Digest that is equal on all workers with the same program and cut."""
    threads: int = 0
    """Required number of torch threads; 0 means any number."""


@dataclass(frozen=True, slots=True)
class Unsplit:
    """A forward that is not split, with the reason."""

    explanation: Explanation


def split(book: CallBook, logs: Sequence[CallLog], *, forward_s: float = 0.0) -> Split | Unsplit:
    """Split the forward that these logs recorded. The last log must have kept its values.

    forward_s: duration of a forward, for the report.
    """
    cut = _Cut(book, logs)
    if not cut.moved:
        return Unsplit(_explain(cut, forward_s))
    stages = cut.stages()
    why = job_package.unsendable(stages) or cut.differs(stages)
    if why:
        return Unsplit(Explanation(why=why))
    kinds = [(leaf.dtype, str(leaf.device)) if isinstance(leaf, torch.Tensor) else None for leaf in logs[0].leaves]
    live = MarkedCode(cut.marked.functions, {path: book.modules[path] for path in cut.marked.owners})
    answering = CallReplay(list(cut.known.values()), cut.constants(cut.moved), kinds, len(cut.crossing), live)
    explanation = _explain(cut, forward_s, stages, _seconds(stages, logs[-1]))
    return Split(stages, answering, cut.needs(), explanation, _digest(stages, logs[0]), cut.threads)


class _Cut:
    """The calls that all recorded forwards made, divided into calls that move and calls that stay."""

    def __init__(self, book: CallBook, logs: Sequence[CallLog]) -> None:
        self.book, self.logs = book, logs
        self.program = recorded_program.common(logs)
        self.free = self.program.free
        self.chosen = min_cut.choose(self.program.values())
        self.moved = [
            number
            for number, call in self.program.calls.items()
            if call.same_as is None
            and (str(number) in self.chosen.moved or name(PartKey(number, 0)) in self.chosen.moved)
        ]
        self.crossing = self._crossing()
        """Moved results that the trainer or a remaining call reads."""
        self.known = self._known()
        self.marked = self._marked()
        rounds = any(self.program.calls[number].rounds for number in self.moved)
        self.threads = torch.get_num_threads() if rounds else 0

    def calls(self, numbers: Iterable[int]) -> list[TorchCall]:
        return [self.program.calls[number] for number in numbers]

    def needs(self) -> frozenset[int]:
        here, read = set(self.moved), set(self.program.read)
        for number, call in self.program.calls.items():
            if number not in here and call.same_as is None:
                read |= set(call.terms)
        return frozenset(term.number for term in read if isinstance(term, InputKey))

    def with_free(self, moved: Sequence[int]) -> list[int]:
        """Return the moved calls and the input-independent calls that they read, in program order."""
        needed, queue = set(moved), list(moved)
        while queue:
            for term in self.program.calls[queue.pop()].terms:
                origin = self.program.original(term)
                if isinstance(origin, PartKey) and origin.call in self.free and origin.call not in needed:
                    needed.add(origin.call)
                    queue.append(origin.call)
        return [number for number in self.program.calls if number in needed]

    def constants(self, moved: Sequence[int]) -> dict[ContentKey, torch.Tensor]:
        found = (key for call in self.calls(self.with_free(moved)) for key in call.keys(ContentKey))
        return {key: self.book.constants[key] for key in found}

    def stages(self) -> tuple[PipelineStage, ...]:
        """Build a program for each stage. The program of a stage forwards the values that later stages or the trainer
        read.
        """
        leaves, calls = self.logs[-1].leaves, self.program.calls
        groups = self._grouped()
        takes: tuple[Term, ...] = tuple(InputKey(number) for number in range(len(leaves)))
        floats = any(
            part.is_tensor and part.kind.is_floating_point for number in self.moved for part in calls[number].parts
        )
        size = InputKey(batch_size(leaves)[0])
        made = []
        for at, own in enumerate(groups):
            later = [number for group in groups[at + 1 :] for number in self.with_free(group)]
            read = {self.program.original(term) for number in later for term in calls[number].terms} | {size}
            have = [*takes, *(PartKey(number, part) for number in own for part in range(len(calls[number].parts)))]
            if at < len(groups) - 1:
                gives: tuple[Term, ...] = tuple(term for term in have if term in read or term in self.crossing)
            else:
                gives = tuple(self.crossing)
            instructions = tuple(_alive([self.known[number] for number in self.with_free(own)], gives))
            inputs = {
                term.number for instruction in instructions for term in instruction.terms if isinstance(term, InputKey)
            }
            device: Any = "cuda" if device_of(calls[own[0]]) == "cuda" else "cpu"
            run = MovedProgram(
                instructions,
                takes,
                gives,
                self.constants(own),
                {
                    number: LeafKind.of(leaves[number])
                    for number in inputs
                    if at == 0 and isinstance(leaves[number], torch.Tensor)
                },
                takes.index(size) if size in takes else 0,
                self.threads,
                this_machine(gpu=device == "cuda") if floats else "",
                self._devices(have),
                self.marked
                if any(instruction.name in self.marked.functions for instruction in instructions)
                else MarkedCode(),
                on_gpu=device == "cuda",
            )
            made.append(PipelineStage(f"forward-{at}", run, device))
            takes = gives
        return tuple(made)

    def differs(self, stages: Sequence[PipelineStage]) -> str:
        """Run the moved part alone, and return the difference to the results of forward(); empty if all bits are
        equal.
        """
        log = self.logs[-1]
        made: Any = list(log.leaves)
        for stage in stages:
            run: Any = stage.run
            try:
                made = run(made)
            # the moved part may fail, for example in a marked function that reads a parameter
            except Exception as error:
                return f"the moved part does not run on its own: {type(error).__name__}: {error}"
            if made is None:
                return f"the moved part does not run on its own: {run.why}"
        for part, value in zip(self.crossing, made, strict=True):
            call = self.program.calls[part.call]
            seen = log.calls[part.call].parts[part.at]
            if not (bit_compare.same(seen.value, value) if seen.is_tensor else encoded(seen.value) == value):
                return (
                    f"{torch_functions.operation(call.name)} of {call.line or 'forward()'} computes other bits on its "
                    "own than in forward()"
                )
        return ""

    def _crossing(self) -> list[PartKey]:
        here, read = set(self.moved), set(self.program.read)
        for number, call in self.program.calls.items():
            if number not in here and number not in self.free:
                read |= {self.program.original(term) for term in call.terms}
        parts = (PartKey(call.number, at) for call in self.calls(self.moved) for at in range(len(call.parts)))
        return [part for part in parts if part in read]

    def _marked(self) -> MarkedCode:
        """Return the marked functions among the moved calls, with copies of the modules that own them."""
        calls = [call for call in self.calls(self.moved) if call.name in self.book.functions]
        paths = {key.path for call in calls for key in call.keys(OwnerKey)}
        owners = {path: marked_calls.without_parameters(self.book.modules[path]) for path in sorted(paths)}
        return MarkedCode({call.name: self.book.functions[call.name] for call in calls}, owners)

    def _known(self) -> dict[int, TorchCall]:
        """Return the moved calls as forward() makes them, including calls that return their own argument."""
        places = {part: at for at, part in enumerate(self.crossing)}
        here = set(self.with_free(self.moved))
        known: dict[int, TorchCall] = {}
        for number, call in self.program.calls.items():
            origin = self.program.original(call.same_as) if call.same_as is not None else None
            aliased = isinstance(origin, InputKey) or (isinstance(origin, PartKey) and origin.call in here)
            if number not in here and not aliased:
                continue
            args, kwargs = value_keys.replaced((call.args, call.kwargs), self.program.original)
            parts = tuple(
                replace(part, value=None, crosses=places.get(PartKey(number, at), -1))
                for at, part in enumerate(call.parts)
            )
            known[number] = replace(
                call, args=args, kwargs=kwargs, parts=parts, same_as=origin, free=number in self.free, text=""
            )
        return known

    def _grouped(self) -> list[list[int]]:
        """Group the moved calls into stages by device. A stage takes all calls whose inputs are ready."""
        left, done, found, known = list(self.moved), set[int](), list[list[int]](), set(self.moved)
        devices = {number: device_of(self.program.calls[number]) for number in left}

        def ready(number: int) -> bool:
            origins = (self.program.original(term) for term in self.program.calls[number].terms)
            return all(
                origin.call in done or origin.call not in known for origin in origins if isinstance(origin, PartKey)
            )

        while left:
            device = min((devices[number] for number in left if ready(number)), key=lambda name: (name != "cpu", name))
            stage: list[int] = []
            for number in left:
                if devices[number] == device and ready(number):
                    stage.append(number)
                    done.add(number)
            left = [number for number in left if number not in done]
            found.append(stage)
        return found

    def _devices(self, have: Sequence[Term]) -> dict[Term, str]:
        parts = {
            term: self.program.calls[term.call].parts[term.at].device for term in have if isinstance(term, PartKey)
        }
        return {term: device for term, device in parts.items() if device != "cpu"}


def device_of(call: TorchCall) -> str:
    return next((part.device.partition(":")[0] for part in call.parts if part.device != "cpu"), "cpu")


def _alive(instructions: list[TorchCall], gives: Sequence[Term]) -> list[TorchCall]:
    """Return the instructions that contribute to the given results."""
    needed, found = set(gives), list[TorchCall]()
    for instruction in reversed(instructions):
        if any(PartKey(instruction.number, at) in needed for at in range(len(instruction.parts))):
            needed |= set(instruction.terms)
            found.append(instruction)
    return found[::-1]


def _seconds(stages: Sequence[PipelineStage], log: CallLog) -> float:
    """Measure the duration of the moved part: the fastest of some runs, or a single run if the part contains user
    code."""
    least, marked = float("inf"), any(stage.run.marked.functions for stage in stages)  # type: ignore[attr-defined]
    for _ in range(1 if marked else TIMES):
        made: Any = list(log.leaves)
        began = time.perf_counter()
        for stage in stages:
            made = stage.run(made)
        least = min(least, time.perf_counter() - began)
    return least


def _digest(stages: Sequence[PipelineStage], log: CallLog) -> str:
    digest = hashlib.sha256(str(len(log.leaves)).encode())
    runs: list[Any] = [stage.run for stage in stages]
    numbers: dict[int, int] = {}
    for run in runs:
        for instruction in run.instructions:
            numbers.setdefault(instruction.number, len(numbers))

    def renumbered(term: Any) -> Any:
        return PartKey(numbers[term.call], term.at) if isinstance(term, PartKey) else term

    for stage, run in zip(stages, runs, strict=True):
        for call in run.instructions:
            digest.update(f"{call.name} {value_keys.replaced((call.args, call.kwargs), renumbered)!r}".encode())
        for function in run.marked.functions.values():
            digest.update(function.__code__.co_code)
        digest.update(f"{stage.device} {run.threads} {run.machine} {[renumbered(term) for term in run.gives]}".encode())
    return digest.hexdigest()[:32]


# ---- the report ----


def _explain(cut: _Cut, forward_s: float, stages: Sequence[PipelineStage] = (), moved_s: float = 0.0) -> Explanation:
    program, log, moved = cut.program, cut.logs[0], cut.calls(cut.moved)
    here = {*cut.moved, *cut.free}
    stay = [call for call in program.calls.values() if call.number not in here and not _is_silent(call)]
    return Explanation(
        moved=_by_line((call, "") for call in moved if not _is_silent(call)),
        stayed=(
            *_by_line((call, call.why) for call in log.stays if call.operation not in UNTOLD),
            *_by_line((call, CHANGING) for call in program.others if call.same_as is None and not _is_silent(call)),
            *_by_line((call, CHEAPER) for call in stay if call.same_as is None),
        ),
        guards=(*_guards(cut.book, moved), *ALWAYS) if moved else (),
        why=cut.chosen.why if moved else _why_not(log, cut.chosen.why),
        stages=tuple(f"{stage.name} on {stage.device}" for stage in stages),
        raw_bytes=cut.chosen.raw_bytes,
        cut_bytes=cut.chosen.bytes,
        moved_s=moved_s,
        forward_s=forward_s or min(log.seconds for log in cut.logs),
        constants=tuple(dict.fromkeys(_constant(cut.book, key) for call in moved for key in call.keys(ContentKey))),
        recorded=len(cut.logs),
        compared=len(cut.crossing),
    )


def _why_not(log: CallLog, why: str) -> str:
    """Return the reason why no operation moves, with the line that prevents it."""
    if not why.startswith(("nothing", "only")):
        return f"nothing is worth moving: {why}"
    if not any(isinstance(leaf, torch.Tensor) for leaf in log.leaves):
        return f"{why}: the model gets no tensor. {MARK}"
    first = next((call for call in log.stays if call.reads_input), None)
    if first is None:
        return f"{why}: no torch call of forward() reads an input"
    at = f" ({first.line}: {first.text})" if first.line else ""
    return f"{why}: {first.operation}{at} reads an input first, and stays because {first.why}"


def _by_line(calls: Iterable[tuple[Any, str]]) -> tuple[OperationGroup, ...]:
    """Group calls by the line that makes them. Each call comes with a reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for call, why in calls:
        operation = torch_functions.operation(call.name) if isinstance(call, TorchCall) else call.operation
        found.setdefault((call.line, call.text, why), []).append(operation)
    return tuple(
        OperationGroup(line=line, text=text, operations=tuple(names), why=why)
        for (line, text, why), names in found.items()
    )


def _is_silent(call: TorchCall) -> bool:
    return call.name in torch_functions.DESCRIBING or (call.view and torch_functions.operation(call.name) in SILENT)


def _guards(book: CallBook, moved: Sequence[TorchCall]) -> list[Guard]:
    """Return the constants of moved calls as guards, by the line that reads them."""
    found = []
    for line, text in dict.fromkeys((call.line, call.text) for call in moved):
        own = [call for call in moved if (call.line, call.text) == (line, text)]
        if values := list(dict.fromkeys(shown for call in own for shown in _plain(call))):
            shown = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
            found.append(Guard(line=line, text=text, what=f"arguments {shown}", breaks="a change of any of them"))
        for tensor in dict.fromkeys(_constant(book, key) for call in own for key in call.keys(ContentKey)):
            breaks = "a change of any bit, or a request for its gradient"
            found.append(Guard(line=line, text=text, what=tensor, breaks=breaks))
    return found


def _plain(call: TorchCall) -> Iterator[str]:
    """Yield the plain arguments of a call as text."""
    for spec in call.keys(PlainKey, TimesKey):
        if isinstance(spec, TimesKey):
            yield "the batch size" if spec.factor == 1 else f"{spec.factor} x the batch size"
        elif isinstance(spec, PlainKey) and spec.value not in (None, ...):
            yield repr(spec.constant).removeprefix("torch.")


def _constant(book: CallBook, content: ContentKey) -> str:
    value = book.constants[content]
    shape = "x".join(map(str, value.shape)) or "one number"
    return f"{book.names.get(content) or f'a tensor of {shape}'} ({value.numel() * value.element_size()} bytes)"
