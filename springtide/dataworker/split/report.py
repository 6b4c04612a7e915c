"""Explains a split as text of 80 columns or as JSON: moved operations, remaining operations with reasons, and costs.

In: Two objects of the script's process: split.py fills in an `Explanation`, and worker/explain_split.py fills in a
`ScriptReport`. Out: `springtide explain-split` prints both, and the job's log has a summary.
"""

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGroup:
    """Operations of one line of the user's program."""

    line: str
    """Position of the line, such as "model.py:12"; empty if torch does not report the line."""
    text: str
    operations: tuple[str, ...]
    why: str = ""
    """Reason why the operations stay in the trainer; empty if they moved."""
    seconds: float = 0.0
    """Measured time of these operations for one batch, in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A condition that the trainer checks for every batch before it uses a result of data workers."""

    line: str = ""
    """Position of the line that reads the state; empty if no single line does."""
    text: str = ""
    what: str
    """The state that the trainer compares, as it was when the split was made."""
    breaks: str
    """The change that the guard detects, and its consequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All facts about a split, or the reason why there is no split."""

    moved: tuple[OperationGroup, ...] = ()
    stayed: tuple[OperationGroup, ...] = ()
    guards: tuple[Guard, ...] = ()
    why: str = ""
    """Reason for this cut, or for the lack of a cut."""
    stages: tuple[str, ...] = ()
    """Name and device of each stage."""
    raw_bytes: int = 0
    """Bytes of the model's inputs for a batch, which data workers would send without a split."""
    cut_bytes: int = 0
    """Bytes that data workers send with the split: values for the trainer, and inputs that the trainer still reads."""
    moved_s: float = 0.0
    """Measured seconds of moved work for a batch, in this process."""
    forward_s: float = 0.0
    """Measured seconds of a whole forward, in this process."""
    constants: tuple[str, ...] = ()
    """Tensors that are sent only once, together with the programs."""
    recorded: int = 0
    """Number of forwards of the training loop that were recorded."""
    compared: int = 0
    """Number of values that were compared bit by bit with the values of a recorded forward."""

    @property
    def moved_share(self) -> float:
        return min(1.0, self.moved_s / self.forward_s) if self.forward_s > 0 else 0.0

    @property
    def summary(self) -> str:
        if not self.moved:
            return f"forward() stays whole: {self.why}"
        count = sum(len(group.operations) for group in self.moved)
        return (
            f"{count} operations of forward() move ({self.moved_share:.0%} of its time); data workers send "
            f"{_size(self.cut_bytes)} a batch instead of {_size(self.raw_bytes)} of inputs"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "moved_share": self.moved_share, "summary": self.summary}

    def text(self) -> str:
        lines = [*_wrap(self.summary), ""]
        if self.moved:
            lines += ["Moves to data workers:", *_groups(self.moved), ""]
        if self.stayed:
            lines += ["Stays with the trainer:", *_groups(self.stayed), ""]
        if self.moved:
            lines += [*_wrap(f"How the cut was chosen: {self.why}")]
            share = f"{self.cut_bytes / self.raw_bytes:.2f}x" if self.raw_bytes else "no inputs"
            lines.append(f"Sent: {_size(self.cut_bytes)} a batch; inputs are {_size(self.raw_bytes)} ({share})")
            lines.append(
                f"Time: a forward() takes {self.forward_s * 1e3:.2f} ms, of which {self.moved_s * 1e3:.2f} ms move "
                f"({self.moved_share:.0%})"
            )
            lines += [f"Stage {number}: {stage}" for number, stage in enumerate(self.stages)]
            if self.constants:
                lines += _wrap(f"Constants that are sent once: {', '.join(self.constants)}")
        if self.recorded:
            lines += _wrap(f"Recorded: {self.recorded} forwards of the training loop")
        if self.moved:
            lines += _wrap(
                f"Verified: the {self.compared} values that data workers send equal those of forward() bit by bit; "
                "no value with a gradient moves"
            )
        if self.guards:
            lines += [
                "",
                *_wrap("Guards, checked for every batch. If a guard fails, the trainer runs the calls itself:"),
            ]
            lines += _guards(self.guards)
        return "\n".join(lines) + "\n"


def _groups(groups: tuple[OperationGroup, ...]) -> list[str]:
    lines = []
    for group in groups:
        head = f"  {group.line or '(no line)'}"
        room = WIDTH - len(head) - 2
        text = group.text if len(group.text) <= room else group.text[: max(0, room - 3)] + "..."
        lines.append(f"{head}  {text}"[:WIDTH].rstrip())
        lines += _wrap(counted(group.operations), "      ")
        if group.why:
            lines += _wrap(f"because {group.why}", "      ")
    return lines


def _guards(guards: tuple[Guard, ...]) -> list[str]:
    lines = []
    for guard in guards:
        lines += _wrap(f"{guard.line}: {guard.what}" if guard.line else guard.what, "  ")
        lines += _wrap(f"broken by {guard.breaks}", "      ")
    return lines


def counted(operations: tuple[str, ...]) -> str:
    """List names with their counts, in the order of first occurrence."""
    times: dict[str, int] = {}
    for name in operations:
        times[name] = times.get(name, 0) + 1
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in times.items())


def _wrap(text: str, indent: str = "") -> list[str]:
    flat = " ".join(text.split())
    return textwrap.wrap(flat, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") or [""]


def _size(count: int) -> str:
    for unit, of in (("MB", 1e6), ("kB", 1e3)):
        if count >= of:
            return f"{count / of:.1f} {unit}"
    return f"{count} B"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptReport:
    """The outcome of `springtide explain-split` for a script."""

    error: str = ""
    """Reason why there is no report; empty if there is a report."""
    blame: str = ""
    """"script": the script raised. "usage": the file is not a training script."""
    trace: str = ""
    why: str = ""
    """Reason why no part of forward() moves; empty if a part moves."""
    called: str = ""
    """Position where the script calls its model."""
    read_s: float = 0.0
    """Seconds that reading and collating a batch take. This work moves with or without a split."""
    found_s: float = 0.0
    """Seconds for which this analysis paused the loop. The analysis runs once."""
    left: tuple[str, ...] = ()
    """Batch leaves that data workers do not send."""
    touched: tuple[str, ...] = ()
    """Batch leaves that data workers send because the training loop reads them."""
    text: str = ""
    """The explanation of the split as text."""
    split: dict[str, Any] | None = None
    """The explanation of the split as plain values."""
