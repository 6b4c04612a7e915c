"""The moved part of a forward(): recorded torch calls, replayed by data workers on the inputs of another batch.

In: calls that dataworker/split/search/split.py has chosen. Out: a `MovedProgram` for each stage, which pickles as
names, plain values and constant tensors, and needs no model. Calls that write do so to a copy. Next:
dataworker/split/program/payload.py runs it on data workers.
"""

import functools
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from springtide.dataworker.split.program import unique, value_keys
from springtide.dataworker.split.program.value_keys import ContentKey, InputKey, NestKey, OwnerKey, PartKey, Spec, Term
from springtide.dataworker.split.recorder import pytree, torch_functions
from springtide.dataworker.split.recorder.marked_calls import MarkedCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One call."""

    number: int
    name: str
    args: tuple[Spec, ...]
    kwargs: NestKey | None = None
    parts: int = 1
    """How many values it gives."""
    writes: bool = False
    """It writes to its first argument: to a copy of it, here."""
    rounds: bool = False
    """The number of threads may show in the last bits of its result."""
    line: str = ""
    text: str = ""

    @property
    def terms(self) -> list[Term]:
        """Inputs and results that it reads."""
        return [*value_keys.terms_in(self.args), *value_keys.terms_in(self.kwargs or ())]


@dataclass(frozen=True, slots=True)
class LeafKind:
    """Fixed facts about an input that the program reads."""

    dtype: torch.dtype
    dimensions: int

    def differs(self, given: Any) -> str:
        """Why an input is not of this kind; "": it is."""
        if type(given) is not torch.Tensor:
            return f"is a {type(given).__name__}; the program was recorded with a tensor"
        if given.dtype is not self.dtype or given.dim() != self.dimensions:
            return (
                f"is {given.dtype} of {given.dim()} dimensions; the program was recorded with {self.dtype} of "
                f"{self.dimensions}"
            )
        return "requires grad" if given.requires_grad else ""


@dataclass(slots=True)
class MovedProgram:
    """Calls in order. It takes the list of values of the program before it, and returns the next list."""

    instructions: tuple[Instruction, ...]
    takes: tuple[Term, ...]
    """What the list given holds, in order."""
    gives: tuple[Term, ...]
    """What it makes; the last one's list crosses."""
    constants: Mapping[ContentKey, torch.Tensor]
    kinds: Mapping[int, LeafKind] = field(default_factory=dict)
    """Of inputs that the program reads; for the first stage."""
    sized_by: int = 0
    """Place in the list given of the tensor whose first size is that of the batch."""
    threads: int = 0
    """So many were used where the program was recorded; 0: the number does not matter."""
    machine: str = ""
    """Where the program was recorded; "": that does not matter."""
    devices: Mapping[Term, str] = field(default_factory=dict)
    """Where values lie that are not in main memory."""
    marked: MarkedCode = field(default_factory=MarkedCode)
    """The user's functions that it calls."""
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    """Torch's default where the program was recorded."""
    why: str = ""
    """Why the last list was not made."""
    _ready: "list[_Step]" = field(default_factory=list, repr=False)

    def __reduce__(self) -> Any:
        return MovedProgram, (
            self.instructions,
            self.takes,
            self.gives,
            self.constants,
            self.kinds,
            self.sized_by,
            self.threads,
            self.machine,
            self.devices,
            self.marked,
            self.dtype,
        )

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """The next list; None where the batch is not of the kind that was recorded, or this machine is another."""
        self.why = self._refuses(given) or self.marked.begin()
        if self.why:
            return None
        with _threads(self.threads), defaulting_to(self.dtype), torch.no_grad():
            made = self._run(given)
        self.why = self.marked.end()
        if self.why:
            return None
        for value in made:
            if isinstance(value, torch.Tensor) and not value.is_contiguous():
                self.why = "a value that crosses is laid out in another way than was recorded"
                return None
        return made

    def _refuses(self, given: Sequence[Any]) -> str:
        if len(given) != len(self.takes):
            return f"there are {len(given)} inputs; the program was recorded with {len(self.takes)}"
        for number, kind in self.kinds.items():
            if why := kind.differs(given[number]):
                return f"input {number} {why}"
        if self.machine and self.machine != this_machine():
            return f"this machine ({this_machine()}) may round otherwise than the trainer's ({self.machine})"
        return ""

    def _run(self, given: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = {
            term: put(value, self.devices.get(term, "cpu")) for term, value in zip(self.takes, given, strict=True)
        }
        values.update(self.constants)
        values.update({OwnerKey(path): module for path, module in self.marked.owners.items()})
        size = int(given[self.sized_by].shape[0]) if isinstance(given[self.sized_by], torch.Tensor) else 0
        for step in self._steps():
            step.run(values, size)
        return [encoded(put(values[term], "cpu")) for term in self.gives]

    def _steps(self) -> "list[_Step]":
        if not self._ready:
            last: dict[Term, int] = {}
            for at, one in enumerate(self.instructions):
                last.update(dict.fromkeys(one.terms, at))
            for at, one in enumerate(self.instructions):
                gone = [term for term in dict.fromkeys(one.terms) if last[term] == at and term not in self.gives]
                self._ready.append(
                    _Step(one, [term for term in gone if isinstance(term, PartKey)], self.marked.functions)
                )
        return self._ready


class _Step:
    """An instruction, ready to run."""

    __slots__ = ("_call", "_free", "_function", "_parts")

    def __init__(self, call: Instruction, free: Sequence[PartKey], marked: Mapping[str, Callable[..., Any]]) -> None:
        self._call, self._free = call, free
        known = marked.get(call.name) or unique.QUICKER.get(call.name)
        self._function = known or torch_functions.resolve(call.name)
        self._parts = [PartKey(call.number, at) for at in range(call.parts)]

    def run(self, values: dict[Any, Any], size: int) -> None:
        """Make the call, and forget what nobody reads any more."""
        call = self._call
        args = [value_keys.filled(one, values, size) for one in call.args]
        kwargs = value_keys.filled(call.kwargs, values, size) if call.kwargs is not None else {}
        if call.writes:
            args[0] = args[0].clone()
            self._function(*args, **kwargs)
            values[self._parts[0]] = args[0]
        else:
            result = self._function(*args, **kwargs)
            found = [result] if isinstance(result, torch.Tensor | torch.Size) else pytree.flatten(result)[0]
            values.update(zip(self._parts, found, strict=True))
        for term in self._free:
            del values[term]


def put(value: Any, device: str) -> Any:
    """A tensor on a device; anything else as it is."""
    return value.to(device) if isinstance(value, torch.Tensor) and str(value.device) != device else value


def encoded(value: Any) -> Any:
    """A result that is no tensor, in a form that can cross."""
    if isinstance(value, torch.Size):
        return list(value)
    return str(value) if isinstance(value, torch.dtype | torch.device) else value


def decoded(value: Any, kind: type) -> Any:
    """What was encoded, again of its kind."""
    if kind is torch.Size:
        return torch.Size(value)
    if kind is torch.dtype:
        return getattr(torch, value.removeprefix("torch."))
    return torch.device(value) if kind is torch.device else value


@functools.cache
def this_machine() -> str:
    """What the last bits of elementary functions depend on."""
    gpu = f" {torch.cuda.get_device_name()}" if torch.cuda.is_initialized() else ""
    flushes = " flushing denormals" if bool((torch.tensor([1e-310], dtype=torch.float64) * 1 == 0).item()) else ""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{gpu} torch {torch.__version__}{flushes}"


@contextmanager
def defaulting_to(dtype: torch.dtype) -> Iterator[None]:
    """With this for torch's default type, as in the process where something was recorded."""
    before = torch.get_default_dtype()
    if dtype is before:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """As many threads as the trainer has, so that sums are added up in the same order."""
    before = torch.get_num_threads()
    if not number or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def leaf_terms(count: int) -> tuple[Term, ...]:
    """The inputs of a model, in order."""
    return tuple(InputKey(number) for number in range(count))
