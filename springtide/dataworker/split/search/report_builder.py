"""Build the report of a split: operations by user line, reasons, bytes, seconds, guards.

In: the findings of dataworker/split/search/split.py. Out: the `Explanation` of dataworker/split/search/report.py.
"""

from collections.abc import Sequence
from typing import Any

import torch

from springtide.dataworker.feed.worker import PipelineStage
from springtide.dataworker.split.program import value_keys
from springtide.dataworker.split.program.min_cut import ProgramCut
from springtide.dataworker.split.program.recorded_program import RecordedProgram
from springtide.dataworker.split.program.value_keys import ContentKey, NestKey, PartKey, PlainKey, TimesKey
from springtide.dataworker.split.recorder import torch_functions
from springtide.dataworker.split.recorder.call_recorder import CallBook, CallLog, RecordedCall
from springtide.dataworker.split.search.report import Explanation, Guard, OperationGroup

CHEAPER = "its result, which is cheaper to make than to send"
CHANGING = "its arguments, which are others from batch to batch"
MARK = "A function of yours that depends on its arguments alone moves if you mark it @springtide.stateless"
SILENT = ("getitem", "size", "shape")
UNTOLD = ("size", "shape", "set_grad_enabled")
WHATEVER = Guard(
    what="everything else that forward() reads in Python",
    breaks="nothing: forward() itself runs with every batch, and reads it as it is then",
)
INPUTS = Guard(
    what="the inputs of forward(), all their bits",
    breaks="the loop writing to its batch by whichever way, or asking for an input's gradient",
)
SURROUNDINGS = Guard(
    what="training mode, autocast, default dtype, threads, modes of torch's",
    breaks="any of them being another than when the split was made",
)


def tell(
    book: CallBook,
    logs: Sequence[CallLog],
    program: RecordedProgram,
    cut: ProgramCut,
    forward_s: float,
    *,
    moved: Sequence[RecordedCall],
    moved_s: float = 0.0,
    stages: Sequence[PipelineStage] = (),
    crossing: Sequence[PartKey] = (),
) -> Explanation:
    """Build the explanation of a program that was cut."""
    gone = {call.number for call in moved}
    stay = [
        call
        for call in program.calls.values()
        if call.number not in gone and call.number not in program.free and call.same_as is None
    ]
    return Explanation(
        moved=_by_line([(call, "") for call in moved]),
        stayed=(
            *_stayed(logs[0]),
            *_by_line([(call, CHANGING) for call in program.others if call.same_as is None]),
            *_by_line([(call, CHEAPER) for call in stay if not _is_silent(call)]),
        ),
        guards=(*_guards(book, moved), INPUTS, SURROUNDINGS, WHATEVER) if moved else (),
        why=cut.why if moved else _why_not(logs[0], cut.why),
        stages=tuple(f"{stage.name} on {stage.device}" for stage in stages),
        raw_bytes=cut.raw_bytes,
        cut_bytes=cut.bytes,
        moved_s=moved_s,
        forward_s=forward_s or min(log.seconds for log in logs),
        constants=tuple(dict.fromkeys(_constant(book, one) for call in moved for one in _contents(call))),
        recorded=len(logs),
        compared=len(crossing),
    )


def _why_not(log: CallLog, why: str) -> str:
    """Return why no operation moves, with the line that prevents it."""
    if not why.startswith(("nothing", "only")):
        return f"nothing is worth moving: {why}"
    if not any(isinstance(leaf, torch.Tensor) for leaf in log.leaves):
        return f"{why}: the model is given no tensor. {MARK}"
    first = next((one for one in log.stays if one.reads_input), None)
    if first is None:
        return f"{why}: no torch call of forward() reads an input"
    at = f" ({first.line}: {first.text})" if first.line else ""
    return f"{why}: {first.operation}{at} reads an input first, and stays because of {first.why}"


def _stayed(log: CallLog) -> tuple[OperationGroup, ...]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in log.stays:
        if one.operation not in UNTOLD:
            found.setdefault((one.line, one.text, one.why), []).append(one.operation)
    return tuple(
        OperationGroup(line=line, text=text, operations=tuple(names), why=why)
        for (line, text, why), names in found.items()
    )


def _by_line(calls: Sequence[tuple[RecordedCall, str]]) -> tuple[OperationGroup, ...]:
    found: dict[tuple[str, str, str], list[RecordedCall]] = {}
    for call, why in calls:
        found.setdefault((call.line, call.text, why), []).append(call)
    groups = []
    for (line, text, why), own in found.items():
        names = tuple(torch_functions.operation(call.name) for call in own if not _is_silent(call))
        if names:
            groups.append(OperationGroup(line=line, text=text, operations=names, why=why))
    return tuple(groups)


def _is_silent(call: RecordedCall) -> bool:
    return call.name in torch_functions.DESCRIBING or (call.view and torch_functions.operation(call.name) in SILENT)


def _guards(book: CallBook, moved: Sequence[RecordedCall]) -> list[Guard]:
    """Return the constants of moved calls as guards, by the line that reads them."""
    plain: dict[tuple[str, str], list[str]] = {}
    tensors: dict[tuple[str, str], list[str]] = {}
    for call in moved:
        place = call.line, call.text
        for one in _plain((call.args, call.kwargs or ())):
            plain.setdefault(place, []).append(one)
        for content in _contents(call):
            tensors.setdefault(place, []).append(_constant(book, content))
    found = []
    for line, text in dict.fromkeys([*plain, *tensors]):
        if values := list(dict.fromkeys(plain.get((line, text), ()))):
            shown = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
            found.append(Guard(line=line, text=text, what=f"arguments {shown}", breaks="another value of any of them"))
        for name in dict.fromkeys(tensors.get((line, text), ())):
            breaks = "any other bit in it, or its gradient being asked for"
            found.append(Guard(line=line, text=text, what=name, breaks=breaks))
    return found


def _plain(spec: Any) -> list[str]:
    if isinstance(spec, PlainKey):
        return [] if spec.value in (None, ...) else [repr(spec.constant).removeprefix("torch.")]
    if isinstance(spec, TimesKey):
        return ["the batch size" if spec.factor == 1 else f"{spec.factor} x the batch size"]
    if isinstance(spec, NestKey | tuple):
        return [text for one in (spec.items if isinstance(spec, NestKey) else spec) for text in _plain(one)]
    return []


def _contents(call: RecordedCall) -> list[ContentKey]:
    return list(value_keys.contents_in((call.args, call.kwargs or ())))


def _constant(book: CallBook, content: ContentKey) -> str:
    value = book.constants[content]
    bytes_ = value.numel() * value.element_size()
    name = book.names.get(content)
    return f"{name} ({bytes_} bytes)" if name else f"a tensor of {_shape(value)} ({bytes_} bytes)"


def _shape(value: torch.Tensor) -> str:
    return "x".join(map(str, value.shape)) or "one number"
