"""The last rung: functions that the user has marked `@springtide.stateless` move; the rest of forward is left as it is.

In: a model whose forward calls marked functions. A call moves when each of its arguments is an input of the model, what
an earlier marked call gave, a constant, or the module it is a method of (of which a copy without parameters travels).
Out: a `Stage` that makes these calls, and a forward in which they are answered from what crossed: the user's own, so
whatever else it does it still does. An argument that is another object than it was when captured is noticed; the
function is then called after all.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from springtide.prep import captured, leaves, stateless
from springtide.prep.capture import Call
from springtide.prep.explain import Explanation, Group
from springtide.prep.leaves import Shape
from springtide.prep.statefulness import Refused

NAME = "functions marked @springtide.stateless"


@dataclass(frozen=True, slots=True)
class Argument:
    """Where one part of a marked call's arguments comes from."""

    kind: str
    """"leaf", "made" (by an earlier call), "module" or "constant"."""
    number: int = 0
    """Of the leaf, or among all that marked calls made."""
    value: Any = None
    """The constant; of a module, its copy without parameters."""


@dataclass(slots=True)
class Marked:
    """One call of a marked function that moves."""

    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    shape: Shape
    """Of (args, kwargs)."""
    gives: Shape
    parts: int
    """How many leaves its result has."""
    seconds: float = 0.0


@dataclass(slots=True)
class Making:
    """What a data worker runs: the marked calls one after the other."""

    calls: tuple[Marked, ...]
    leaves: int

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """All that they give; None when one gives something of another structure than it did."""
        if len(given) != self.leaves:
            return None
        made: list[Any] = []
        for call in self.calls:
            args, kwargs = call.shape.rebuild([_fetched(one, given, made) for one in call.arguments])
            with torch.no_grad():
                parts, shape = leaves.flatten(call.function(*args, **kwargs))
            if shape != call.gives:
                return None
            made += parts
        return made

    @property
    def text(self) -> str:
        """What tells one program from another."""
        told = [
            (one.function.__qualname__, one.function.__code__.co_code.hex(), [a.kind for a in one.arguments], one.gives)
            for one in self.calls
        ]
        return repr(told)


@dataclass(slots=True)
class Answering:
    """The trainer's part: the user's own forward, with marked calls answered from what crossed."""

    forward: Callable[..., Any]
    calls: tuple[Marked, ...]
    modules: dict[int, nn.Module]
    """Of the call with this number, the live object that it is a method of."""
    shape: Shape

    def __call__(self, crossing: Sequence[Any], given: Sequence[Any]) -> Any:
        """What forward gives."""
        args, kwargs = self.shape.rebuild(given)
        with stateless.heard_by(_Answers(self, crossing, given).answer):
            return self.forward(*args, **kwargs)


class _Answers:
    """Marked calls of one forward, in order."""

    def __init__(self, to: Answering, crossing: Sequence[Any], given: Sequence[Any]) -> None:
        self._to, self._crossing, self._given = to, crossing, given
        self._waiting = list(enumerate(to.calls))
        ends = [0]
        for call in to.calls:
            ends.append(ends[-1] + call.parts)
        self._begins = ends

    def answer(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What crossed, if this is the call that it was made for; else what the function gives."""
        for at, (number, call) in enumerate(self._waiting):
            if call.function is function:
                if not self._is(number, call, args, kwargs):
                    break
                del self._waiting[at]
                begin = self._begins[number]
                return call.gives.rebuild(self._crossing[begin : begin + call.parts])
        with stateless.heard_by(None):
            return function(*args, **kwargs)

    def _is(self, number: int, call: Marked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        found, shape = leaves.flatten((args, kwargs))
        if shape != call.shape:
            return False
        for one, value in zip(call.arguments, found, strict=True):
            if one.kind == "leaf" and value is not self._given[one.number]:
                return False
            if one.kind == "made" and value is not self._crossing[one.number]:
                return False
            if one.kind == "module" and value is not self._to.modules[number]:
                return False
            if one.kind == "constant" and (type(value) is not type(one.value) or value != one.value):
                return False
        return True


@dataclass(slots=True)
class _Heard:
    """Marked calls of one forward, as they happen."""

    call: Call
    calls: list[Marked] = field(default_factory=list)
    modules: dict[int, nn.Module] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)
    heard: int = 0

    def listen(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begin = time.perf_counter()
        with stateless.heard_by(None):
            result = function(*args, **kwargs)
        took = time.perf_counter() - begin
        self.heard += 1
        found, shape = leaves.flatten((args, kwargs))
        arguments = [self._argument(value) for value in found]
        if all(one is not None for one in arguments):
            module = next((value for value in found if isinstance(value, nn.Module)), None)
            if module is not None:
                self.modules[len(self.calls)] = module
            parts, gives = leaves.flatten(result)
            known = tuple(one for one in arguments if one is not None)
            self.calls.append(Marked(function, known, shape, gives, len(parts), took))
            self.made += parts
        return result

    def _argument(self, value: Any) -> Argument | None:
        for number, leaf in enumerate(self.call.leaves):
            if value is leaf and not isinstance(value, int | float | str | None):
                return Argument("leaf", number)
        for number, made in enumerate(self.made):
            if value is made and isinstance(value, torch.Tensor | list | tuple):
                return Argument("made", number)
        if isinstance(value, nn.Module):
            return Argument("module", value=without_parameters(value))
        return Argument("constant", value=value) if isinstance(value, int | float | str | bytes | None) else None


def listen(model: nn.Module, call: Call) -> tuple[Making, Answering]:
    """Run forward once and take its marked calls apart. Raises `Refused` when none can move."""
    heard = _Heard(call)
    with stateless.heard_by(heard.listen):
        model(*call.args, **call.kwargs)
    if not heard.calls:
        raise Refused(
            "no call of a marked function takes the model's inputs alone"
            if heard.heard
            else "forward() calls no function that is marked @springtide.stateless"
        )
    calls = tuple(heard.calls)
    return Making(calls, len(call.leaves)), Answering(model.forward, calls, heard.modules, call.shape)


def tell(making: Making, raw: int, crossing: int, forward_s: float) -> Explanation:
    """What moved, in the user's words."""
    groups = []
    for call in making.calls:
        code = call.function.__code__
        line, text = captured.place(code.co_filename, code.co_firstlineno)
        groups.append(Group(line=line, text=text, operations=(call.function.__qualname__,), seconds=call.seconds))
    return Explanation(
        moved=tuple(groups),
        stayed=(Group(line="", text="", operations=("everything else",), why="no mark"),),
        rung=NAME,
        why="marked functions move, whatever they send",
        stages=("forward-0 on cpu",),
        raw_bytes=raw,
        cut_bytes=crossing,
        moved_s=sum(call.seconds for call in making.calls),
        forward_s=forward_s,
    )


def digest(making: Making) -> str:
    """Equal where the same functions move in the same order."""
    return hashlib.sha256(making.text.encode()).hexdigest()[:32]


def weight(value: Any) -> int:
    """Bytes of a leaf on the wire, about."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(len(one) + 4 for one in value if isinstance(one, str | bytes))
    return int(getattr(value, "nbytes", 8))


def without_parameters(module: nn.Module) -> nn.Module:
    """A copy of a module for its methods to run on elsewhere: plain attributes and buffers, no parameters."""
    copy: nn.Module = object.__new__(type(module))
    nn.Module.__init__(copy)
    for name, value in vars(module).items():
        if name in ("forward", "springtide_binding") or (name in vars(copy) and name != "training"):
            continue
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            object.__setattr__(copy, name, value)
    for name, buffer in module._buffers.items():
        copy._buffers[name] = None if buffer is None else buffer.detach().clone()
    for name, child in module._modules.items():
        copy._modules[name] = None if child is None else without_parameters(child)
    return copy


def _fetched(one: Argument, given: Sequence[Any], made: Sequence[Any]) -> Any:
    if one.kind == "leaf":
        return given[one.number]
    return made[one.number] if one.kind == "made" else one.value
