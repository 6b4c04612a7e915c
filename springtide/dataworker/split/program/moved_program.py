"""Runs the moved torch calls of a forward() on data workers, with the inputs of another batch.

In: the calls that split.py chose. Out: one `MovedProgram` for each stage. A program is pickled as names, plain values
and constant tensors, and needs no model. Calls that write in place write to a copy.
"""

import functools
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from springtide import _native
from springtide.dataworker.split.program.value_keys import ContentKey, OwnerKey, PartKey, Term, TorchCall
from springtide.dataworker.split.recorder import torch_functions
from springtide.dataworker.split.recorder.marked_calls import MarkedCode


@dataclass(frozen=True, slots=True)
class LeafKind:
    """Properties that an input of the program must have."""

    dtype: torch.dtype
    dimensions: int

    @classmethod
    def of(cls, leaf: torch.Tensor) -> "LeafKind":
        return cls(leaf.dtype, leaf.dim())

    def differs(self, given: Any) -> str:
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
    """Torch calls of a single stage, in order: takes the value list of the previous stage, returns the next list."""

    instructions: tuple[TorchCall, ...]
    takes: tuple[Term, ...]
    """Terms of the input list, in the order of the list."""
    gives: tuple[Term, ...]
    """Terms of the returned list, in the order of the list. The last stage's list goes to the trainer."""
    constants: Mapping[ContentKey, torch.Tensor]
    kinds: Mapping[int, LeafKind] = field(default_factory=dict)
    """Required properties of the inputs that the first stage reads."""
    sized_by: int = 0
    """Position, in the input list, of the tensor whose first dimension is the batch size."""
    threads: int = 0
    """Number of torch threads during the recording; 0 if the number does not matter."""
    machine: str = ""
    """Machine type during the recording; empty if results do not depend on the machine."""
    devices: Mapping[Term, str] = field(default_factory=dict)
    """Devices of values outside main memory."""
    marked: MarkedCode = field(default_factory=MarkedCode)
    """The user's marked functions that the program calls."""
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    """Torch's default dtype during the recording."""
    on_gpu: bool = False
    """True if the program computes on a GPU, because then the type of the GPU matters too."""
    why: str = ""
    """Reason why the last call returned None."""
    _ready: "list[_Step]" = field(default_factory=list, repr=False)

    def __reduce__(self) -> Any:
        own = [known.name for known in fields(self) if known.name not in ("why", "_ready")]
        return MovedProgram, tuple(getattr(self, name) for name in own)

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """Return the next value list. Return None if the batch or this machine differs from the recording."""
        self.why = self._refuses(given) or self.marked.begin()
        if self.why:
            return None
        # use as many torch threads as the trainer, so that sums add up in the same order
        threads = _setting(self.threads or torch.get_num_threads(), torch.get_num_threads, torch.set_num_threads)
        with threads, defaulting_to(self.dtype), torch.no_grad():
            made = self._run(given)
        self.why = self.marked.end()
        if self.why:
            return None
        for value in made:
            if isinstance(value, torch.Tensor) and not value.is_contiguous():
                self.why = "a value to send has a different memory layout than in the recording"
                return None
        return made

    def _refuses(self, given: Sequence[Any]) -> str:
        if len(given) != len(self.takes):
            return f"there are {len(given)} inputs; the program was recorded with {len(self.takes)}"
        for number, kind in self.kinds.items():
            if why := kind.differs(given[number]):
                return f"input {number} {why}"
        if self.machine and self.machine != (here := this_machine(gpu=self.on_gpu)):
            return f"this machine ({here}) may round differently from the trainer's ({self.machine})"
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
            reads = [set(call.terms) for call in self.instructions]
            last = {term: at for at, terms in enumerate(reads) for term in terms}
            for at, instruction in enumerate(self.instructions):
                gone = [term for term in reads[at] if last[term] == at and term not in self.gives]
                self._ready.append(
                    _Step(instruction, [term for term in gone if isinstance(term, PartKey)], self.marked.functions)
                )
        return self._ready


class _Step:
    """A call of the program with its function resolved."""

    __slots__ = ("_call", "_free", "_function", "_parts")

    def __init__(self, call: TorchCall, free: Sequence[PartKey], marked: Mapping[str, Callable[..., Any]]) -> None:
        self._call, self._free = call, free
        known = marked.get(call.name) or QUICKER.get(call.name)
        self._function = known or torch_functions.resolve(call.name)
        self._parts = [PartKey(call.number, at) for at in range(len(call.parts))]

    def run(self, values: dict[Any, Any], size: int) -> None:
        found = self._call.run(self._function, values.__getitem__, size)
        values.update(zip(self._parts, found, strict=True))
        for term in self._free:
            del values[term]


def put(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) and str(value.device) != device else value


def encoded(value: Any) -> Any:
    """Encode a result that is not a tensor, so that a message can carry it."""
    if isinstance(value, torch.Size):
        return list(value)
    return str(value) if isinstance(value, torch.dtype | torch.device) else value


def decoded(value: Any, kind: type) -> Any:
    """Restore the original type of a result that `encoded` has encoded."""
    if kind is torch.Size:
        return torch.Size(value)
    if kind is torch.dtype:
        return getattr(torch, value.removeprefix("torch."))
    return torch.device(value) if kind is torch.device else value


@functools.cache
def this_machine(*, gpu: bool = False) -> str:
    """Return the machine properties that can change the last bits of elementary functions, on a GPU or on the CPU."""
    name = torch.cuda.get_device_name() if gpu and torch.cuda.is_available() else "no GPU"
    card = f" {name}" if gpu else ""
    flushes = " flushing denormals" if bool((torch.tensor([1e-310], dtype=torch.float64) * 1 == 0).item()) else ""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{card} torch {torch.__version__}{flushes}"


def defaulting_to(dtype: torch.dtype) -> AbstractContextManager[None]:
    return _setting(dtype, torch.get_default_dtype, torch.set_default_dtype)


@contextmanager
def _setting(value: Any, get: Callable[[], Any], change: Callable[[Any], None]) -> Iterator[None]:
    before = get()
    if value == before:
        yield
        return
    change(value)
    try:
        yield
    finally:
        change(before)


# Models often deduplicate sparse features. torch sorts by comparison. cpp/batch/distinct.cpp counts or uses a radix
# sort, which gives the same bits in a fraction of the time.
# smallest and largest number of elements for which the native function is used; for fewer elements, torch is as fast
FEWEST, MOST = 1024, 1 << 31
Found = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_torchs = torch.ops.aten._unique2.default


def unique(
    input: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is not None or not sorted:
        return torch.unique(input, sorted, return_inverse, return_counts, dim)
    return _asked(unique2(input, sorted, return_inverse, return_counts), return_inverse, return_counts)


def _asked(found: Found, return_inverse: bool, return_counts: bool) -> Any:
    """Return the results that the caller asked for, as torch does."""
    given = tuple(part for part, kept in zip(found, (True, return_inverse, return_counts), strict=True) if kept)
    return given if len(given) > 1 else given[0]


def proven_unique(
    input: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return the result of torch.unique: compute the result natively and verify it, or else let torch compute it.

    The proof: only the right result has ascending values that reproduce the input, with each value as often as its
    count says.
    """
    if dim is None and sorted and input.is_cpu and input.dtype in (torch.int64, torch.int32):
        found = values, inverse, counts = unique2(input, True, True, True)
        if _is_unique(input, values, inverse, counts):
            return _asked(found, return_inverse, return_counts)
    return torch.unique(input, sorted, return_inverse, return_counts, dim)


def _is_unique(given: torch.Tensor, values: torch.Tensor, inverse: torch.Tensor, counts: torch.Tensor) -> bool:
    parts = [part.to(torch.int64).contiguous().view(-1).numpy() for part in (given, values, inverse, counts)]
    return inverse.shape == given.shape and given.numel() > 0 and _native.is_distinct(*parts)


QUICKER: dict[str, Callable[..., Any]] = {"torch.unique": unique, "Tensor.unique": unique}
"""Native replacements that data workers use, by name of the torch function."""
PROVEN: dict[str, Callable[..., Any]] = {"torch.unique": proven_unique, "Tensor.unique": proven_unique}
"""Native replacements that the trainer uses when it recomputes some batches for comparison."""


def unique2(
    given: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Found:
    """Return distinct values, the inverse indices and the counts. Results that the caller did not ask for are empty."""
    if given.dtype not in (torch.int64, torch.int32) or not given.is_cpu or not FEWEST <= given.numel() < MOST:
        found: Found = _torchs(given, sorted, return_inverse, return_counts)
        return found
    flat = given.to(torch.int64).contiguous().view(-1)
    values = torch.empty_like(flat)
    inverse = torch.empty(given.shape if return_inverse else 0, dtype=torch.int64)
    counts = torch.empty_like(flat) if return_counts else torch.empty(0, dtype=torch.int64)
    many = _native.distinct(flat.numpy(), values.numpy(), inverse.view(-1).numpy(), counts.numpy())
    if return_counts:
        counts.resize_(many)
    return values.resize_(many).to(given.dtype), inverse, counts
