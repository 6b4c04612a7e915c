"""Whether a batch is of the kind that a program was captured for: what tracing took for granted, checked each time.

In: what torch.export assumed (shapes, ranges, relations between sizes) and inputs that are no tensors, whose values are
constants of the program. A stage carries its guard along; what does not pass goes through the user's own forward.
"""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

SIZE = re.compile(r"L\['(?:leaves|flat_args)'\]\[(\d+)\]")


@dataclass(slots=True)
class TensorKind:
    """What is fixed of one tensor: sizes that are None may vary."""

    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    least: tuple[int, ...]
    """Smallest size of each dimension that may vary: tracing takes it for granted that a batch is not 1."""


@dataclass(slots=True)
class Guard:
    """All that must hold of a call's leaves. Pickles as plain values."""

    leaves: int
    """How many there are."""
    tensors: dict[int, TensorKind]
    fixed: dict[int, Any]
    """Leaves that are no tensors, with the value that the program was captured with."""
    relations: tuple[str, ...] = ()
    """Python over `t`, the tensors in order: what tracing assumed of sizes."""
    unread: dict[int, type] = field(default_factory=dict)
    """Leaves that are no tensors and that the program reads nothing of but, maybe, their type."""
    _compiled: list[Any] = field(default_factory=list, repr=False)

    def __reduce__(self) -> Any:
        return Guard, (self.leaves, self.tensors, self.fixed, self.relations, self.unread)

    def refuses(self, leaves: Sequence[Any]) -> str:
        """Empty when the program is for these leaves, else why not."""
        if len(leaves) != self.leaves:
            return f"there are {len(leaves)} inputs; the program was captured with {self.leaves}"
        for number, value in self.fixed.items():
            if not is_equal(leaves[number], value):
                return f"input {number} is {_short(leaves[number])}; the program was captured with {_short(value)}"
        for number, mould in self.unread.items():
            if type(leaves[number]) is not mould:
                return f"input {number} is {_short(leaves[number])}; the program was captured with a {mould.__name__}"
        for number, kind in self.tensors.items():
            why = _differs(leaves[number], kind)
            if why:
                return f"input {number} {why}"
        if self.relations:
            tensors = [leaves[number] for number in self.tensors]
            for text, code in zip(self.relations, self._codes(), strict=True):
                if not eval(code, {**_functions(), "t": tensors}):
                    return f"sizes do not fit what forward() assumes: {text}"
        return ""

    def _codes(self) -> list[Any]:
        if not self._compiled:
            self._compiled.extend(compile(text, "<guard>", "eval") for text in self.relations)
        return self._compiled


def relation(text: str) -> str | None:
    """torch's words for an assumption about inputs, over `t`; None when it is about something else."""
    mine = SIZE.sub(r"t[\1]", text)
    return None if "L[" in mine or "G[" in mine else mine


@functools.cache
def _functions() -> dict[str, Any]:
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {**SYMPY_INTERP, "math": math}


def _differs(given: Any, kind: TensorKind) -> str:
    if not isinstance(given, torch.Tensor):
        return f"is a {type(given).__name__}; the program was captured with a tensor"
    if given.dtype != kind.dtype:
        return f"is {given.dtype}; the program was captured with {kind.dtype}"
    if given.requires_grad:
        return "requires grad"
    if given.dim() != len(kind.sizes):
        return f"has {given.dim()} dimensions; the program was captured with {len(kind.sizes)}"
    for at, (size, fixed, least) in enumerate(zip(given.shape, kind.sizes, kind.least, strict=True)):
        if fixed is not None and size != fixed:
            return f"has size {size} in dimension {at}, which forward() fixes to {fixed}"
        if fixed is None and size < least:
            return f"has size {size} in dimension {at}; the program was captured for {least} or more"
    return ""


def is_equal(left: Any, right: Any) -> bool:
    """Whether two leaves that are no tensors are of one type and equal."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    try:
        return bool(left == right)
    except (TypeError, ValueError, RuntimeError):
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
