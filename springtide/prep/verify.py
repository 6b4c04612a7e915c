"""A split is taken only if it gives what the user's own forward gives, bit by bit, on every batch at hand.

In: a split, the calls, and what the user's own forward made of them. Compared, with crossing values copied as a message
copies them: outputs, buffers that forward writes, random numbers drawn, gradients of parameters. Tables stand aside for
both. Raises `Refused` with the first difference.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from springtide.embedding.table_weight import TableWeight
from springtide.prep import leaves, seen_inside, standins
from springtide.prep.capture import Call
from springtide.prep.guard import is_equal
from springtide.prep.statefulness import Refused
from springtide.prep.untouched import Untouched, same


class Divided(Protocol):
    """What there is to verify."""

    def crossing(self, leaves: Sequence[Any]) -> list[Any] | None:
        """What data workers make of a call's leaves."""
        ...

    @property
    def rest(self) -> Any:
        """(crossing, leaves) -> outputs."""
        ...

    @property
    def needs(self) -> frozenset[int]:
        """Leaves that `rest` reads."""
        ...


@dataclass(slots=True)
class Own:
    """What the user's own forward did."""

    outputs: list[Any]
    """For each call, from the same state and random numbers."""
    gradients: list[torch.Tensor | None] | None
    """Of the parameters and of all rows looked up, for the first call; None: they are not looked at."""
    after: list[dict[str, torch.Tensor]]
    """For each call: tensors of the model that it changed."""
    chance: list[torch.Tensor]
    """For each call: the state of torch's random numbers after it."""
    changed: set[str]
    """Paths of buffers and parameters that forward changed."""
    written: list[str]
    """Attributes of modules that forward set."""
    seconds: float
    """The quickest of its runs on the first call."""


class Absent:
    """In place of a leaf that `rest` must not read."""


def own_runs(
    model: nn.Module, calls: Sequence[Call], whole: dict[str, nn.Module], before: Untouched, *, gradients: bool = True
) -> tuple[list[Call], Own, Exception | None]:
    """Run the user's own forward on every call, each time from where the model is now.

    Gives back the calls that it can be run on (a BatchNorm takes no batch of one) and what it did; and the last error.
    """
    found, able, failed = Own([], [], [], [], set(), [], 0.0), list[Call](), None
    rows: list[torch.Tensor] = []
    with standins.standing_in(list(whole.values()), watch=rows):
        marks = set(before.written())  # stand-ins are attributes too
        for call in calls:
            try:
                given, took = _timed(model, call, before, rows, runs=1 if able else 3)
            except Exception as error:
                failed = error
                continue
            able.append(call)
            if len(able) == 1:
                found.seconds, found.gradients = took, _gradients(model, given, rows) if gradients else None
            changed = before.changed()
            found.changed |= changed
            found.outputs.append(_detached(given))
            found.after.append(_now(model, changed))
            found.chance.append(torch.get_rng_state())
        found.written = [name for name in before.written() if name not in marks]
    before.rewind_tensors()
    before.rewind_chance()
    return able, found, failed


def _timed(model: nn.Module, call: Call, before: Untouched, rows: list[Any], runs: int) -> tuple[Any, float]:
    """What forward gives, always from the same state and random numbers; and the least seconds that it took."""
    least = float("inf")
    for _ in range(runs):
        before.rewind_tensors()
        before.rewind_chance()
        rows.clear()
        begin = time.perf_counter()
        given = model(*call.args, **call.kwargs)
        least = min(least, time.perf_counter() - begin)
    return given, least


def compare(
    model: nn.Module,
    split: Divided,
    calls: Sequence[Call],
    own: Own,
    whole: dict[str, nn.Module],
    before: Untouched,
) -> int:
    """How many further batches gave the same; the first batch must be one for which the split is."""
    held = 0
    for number, call in enumerate(calls):
        crossing = split.crossing([_copied(leaf) for leaf in call.leaves])
        if crossing is None:
            _refuse_if_usual(split, call, number)
            continue
        kept = [leaf if at in split.needs else Absent() for at, leaf in enumerate(call.leaves)]
        before.rewind_tensors()
        before.rewind_chance()
        rows: list[torch.Tensor] = []
        with standins.standing_in(list(whole.values()), watch=rows):
            given = split.rest([_copied(one) for one in crossing], kept)
            if number == 0 and own.gradients is not None:
                _same_gradients(own.gradients, _gradients(model, given, rows))
        _same_outputs(own.outputs[number], given)
        for path, now in _now(model, own.changed).items():
            was = own.after[number].get(path)
            if was is not None and not same(was, now):
                raise Refused(f"{path} is not what forward() itself makes of it")
        if not torch.equal(torch.get_rng_state(), own.chance[number]):
            raise Refused("other random numbers are drawn than by forward() itself")
        held += number > 0
    before.rewind_tensors()
    before.rewind_chance()
    return held


def _refuse_if_usual(split: Any, call: Call, number: int) -> None:
    """A batch for which the program is not: fine for one that is odd, such as a last one of a single sample."""
    guard = getattr(split.stages[0].run, "guard", None)
    why = guard.refuses(call.leaves) if guard is not None else "it was not made for this batch"
    smallest = min((tensor.shape[0] for tensor in call.tensors.values() if tensor.dim()), default=0)
    if number == 0 or smallest > 1:
        raise Refused(f"on another batch {why}" if number else why)


def _same_outputs(own: Any, given: Any) -> None:
    ours, theirs = seen_inside.walk(own), seen_inside.walk(given)
    for (path, one), (other, two) in itertools.zip_longest(ours, theirs, fillvalue=("", Absent)):
        where = f"output{path}"
        if path != other or (type(one) is not type(two) and not isinstance(one, torch.Tensor)):
            raise Refused(f"{where} has another structure than that of forward() itself, or than for another batch")
        if isinstance(one, torch.Tensor):
            if not isinstance(two, torch.Tensor) or not same(one, two):
                raise Refused(f"{where} is not equal bit by bit to that of forward() itself")
        elif not seen_inside.has_parts(one) and not is_equal(one, two):
            raise Refused(f"{where} is {one!r} by forward() itself and {two!r} in the captured program")


def _gradients(model: nn.Module, given: Any, rows: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a sum over all outputs, by parameters and rows that can be reached; nothing is kept in .grad."""
    outs = [one for one in seen_inside.tensors(given) if one.requires_grad]
    own = [one for one in model.parameters() if one.requires_grad and not isinstance(one, TableWeight)]
    looked_up = [one for one in rows if one.requires_grad]
    if not outs or any(one._backward_hooks for one in own):
        return []
    total = torch.stack([(one.double() * (at + 1)).sum() for at, one in enumerate(outs)]).sum()
    found = torch.autograd.grad(total, [*own, *looked_up], allow_unused=True)
    # a lookup that nobody reads is no part of a captured program
    return [*found[: len(own)], *(one for one in found[len(own) :] if one is not None)]


def _same_gradients(own: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]) -> None:
    if len(own) != len(given):
        raise Refused("gradients flow to other parameters than from forward() itself")
    for one, two in zip(own, given, strict=True):
        if (one is None) != (two is None) or (one is not None and two is not None and not same(one, two)):
            raise Refused("gradients are not equal bit by bit to those of forward() itself")


def _now(model: nn.Module, paths: set[str]) -> dict[str, torch.Tensor]:
    return {path: one.detach().clone() for path, one in _tensors(model) if path in paths}


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _copied(value: Any) -> Any:
    """As it comes out of a message: laid out anew."""
    return value.detach().contiguous().clone() if isinstance(value, torch.Tensor) else value


def _detached(given: Any) -> Any:
    parts, shape = leaves.flatten(given)
    return shape.rebuild([one.detach().clone() if isinstance(one, torch.Tensor) else one for one in parts])
