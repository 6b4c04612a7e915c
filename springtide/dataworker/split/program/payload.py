"""Builds the payload for a trainer: results of the moved part of forward(), and the batch leaves that the trainer
needs.

In: sample indices, on a data worker. Out: `{"batch": ..., "crossing": [...]}`, with a `LeftTensor` for each leaf that
the trainer does not need. If the batch does not fit the split, the payload is `{"batch": ...}`, and the trainer runs
the user's own forward. The flags `changed` and `draws` say that the data set modified itself, or that it draws random
numbers.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from springtide.data.source import Fetch, Indices, as_batch
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.worker import Pipeline
from springtide.dataworker.split.program import arguments
from springtide.dataworker.split.program.moved_program import defaulting_to
from springtide.dataworker.split.recorder import bit_compare, pytree
from springtide.dataworker.split.recorder.reachable_state import CopyWatch

Run = Callable[[Sequence[Any]], Sequence[Any] | None]


@dataclass(frozen=True, slots=True)
class LeftTensor:
    """Placeholder for a tensor that was not sent, with the tensor's metadata."""

    number: int
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, number: int, leaf: torch.Tensor) -> "LeftTensor":
        return cls(number, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))


@dataclass(frozen=True, slots=True)
class FirstStage:
    """The first stage: reads and collates samples, and runs the moved part on the same device."""

    fetch: Fetch
    call: arguments.ModelCall | None = None
    """The mapping from a batch to the model's arguments; None if no part of forward() moved."""
    run: Run | None = None
    """The first moved program. If the program runs on another stage: None, and that stage gets the leaves unchanged."""
    left: tuple[tuple[int, arguments.Path], ...] = ()
    """Leaves that the trainer does not need, by number of the leaf."""
    watch: CopyWatch = field(default_factory=CopyWatch, compare=False)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    """Torch's default dtype in the trainer, which also applies while the data set reads samples."""

    def __call__(self, indices: Indices) -> Any:
        """Return the payload for these samples."""
        return self.keeping(indices, ())

    def keeping(self, indices: Indices, asked: Sequence[int]) -> Any:
        """Return the payload together with some of the `left` leaves. The trainer asked for these leaves by number."""
        self.watch.begin(dataset=self.fetch)
        before = batch_rng.mark()
        with defaulting_to(self.dtype):
            batch = as_batch(self.fetch(indices))
        flags: dict[str, Any] = {"draws": True} if batch_rng.mark() != before else {}
        made = self.made(batch, asked)
        if changed := self.watch.changed():
            flags["changed"] = changed
        return {**made, **flags}

    def made(self, batch: Any, asked: Sequence[int]) -> dict[str, Any]:
        """Return the payload for a batch that was already read."""
        if self.call is None:
            return {"batch": batch}
        call = self.call
        crossing, why = _crossing(self.run, lambda: pytree.flatten(call.fill(batch))[0])
        if crossing is None:
            return {"batch": batch, "unsplit": why}
        left = {path: functools.partial(LeftTensor.of, number) for number, path in self.left if number not in asked}
        return {"batch": replaced(batch, left), "crossing": list(crossing)}


@dataclass(frozen=True, slots=True)
class LaterStage:
    """A later stage: continues with the results of the previous stage."""

    run: Run

    def __call__(self, made: Any) -> Any:
        """Return the payload after this stage."""
        if not isinstance(made, Mapping) or "crossing" not in made:
            return made
        crossing, why = _crossing(self.run, lambda: made["crossing"])
        if crossing is None:
            return {**{name: part for name, part in made.items() if name != "crossing"}, "unsplit": why}
        return {**made, "crossing": list(crossing)}


def _crossing(run: Run | None, read: Callable[[], Sequence[Any]]) -> tuple[Sequence[Any] | None, str]:
    """Run a moved program on the values that `read` returns. Return its values, or None with the reason."""
    try:
        given = read()
        made = run(given) if run is not None else given
    except arguments.Another as error:
        return None, str(error)
    # user code in forward() may raise anything; the trainer runs the same code, and the error is raised there
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    if made is None:
        return None, getattr(run, "why", "") or "the batch is not of the kind that the split was made for"
    return made, ""


def tried(pipeline: Pipeline, batch: Any) -> Any:
    """Run all stages on a batch that was already read, without the data set."""
    first, *others = pipeline.stages
    made = first.run.made(batch, ())  # type: ignore[attr-defined]
    for stage in others:
        made = stage.run(made)
    return made


def dtype_of(left: LeftTensor) -> torch.dtype:
    found = getattr(torch, left.dtype, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"a leaf that was not sent has dtype {left.dtype!r}, which torch does not know")
    return found


def replaced(batch: Any, places: Mapping[arguments.Path, Callable[[Any], Any]]) -> Any:
    """Return the batch with the values at some paths changed. All other objects stay identical.

    The function skips paths that this batch does not have, such as a missing key.
    """
    if not places:
        return batch
    if () in places:
        return places[()](batch)
    inner: dict[Any, dict[arguments.Path, Callable[[Any], Any]]] = {}
    for (step, *rest), change in places.items():
        inner.setdefault(step, {})[tuple(rest)] = change
    if isinstance(batch, tuple):
        parts = [replaced(part, inner.get(("item", i), {})) for i, part in enumerate(batch)]
        return type(batch)._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    changed = copy.copy(batch)
    for (kind, name), below in inner.items():
        try:
            part = getattr(batch, name) if kind == "attr" else batch[name]
        except (AttributeError, LookupError, TypeError):
            continue
        if kind == "attr":
            object.__setattr__(changed, name, replaced(part, below))
        else:
            changed[name] = replaced(part, below)
    return changed


def filled(batch: Any, fill: Callable[[LeftTensor], Any]) -> Any:
    """Return the batch with a value in place of every placeholder. A batch without placeholders is returned
    unchanged."""
    if isinstance(batch, LeftTensor):
        return fill(batch)
    if isinstance(batch, torch.Tensor | str | bytes | int | float | None):
        return batch
    if isinstance(batch, Mapping):
        changes = {key: new for key, part in batch.items() if (new := filled(part, fill)) is not part}
        changed: Any = copy.copy(batch) if changes else batch
        for key, new in changes.items():
            changed[key] = new
        return changed
    if isinstance(batch, tuple | list):
        parts = [filled(part, fill) for part in batch]
        if all(new is part for new, part in zip(parts, batch, strict=True)):
            return batch
        return type(batch)._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        changes = {name: new for name in names if (new := filled(one := getattr(batch, name), fill)) is not one}
        changed = copy.copy(batch) if changes else batch
        for name, new in changes.items():
            object.__setattr__(changed, name, new)
        return changed
    return batch


def difference(mine: Any, theirs: Any, path: str = "batch") -> str:
    """Return the path of the first part that differs in any bit, or "". Skip parts that were not sent."""
    if isinstance(theirs, LeftTensor):
        return ""
    if isinstance(mine, torch.Tensor):
        return "" if isinstance(theirs, torch.Tensor) and bit_compare.same(mine, theirs) else path
    if isinstance(mine, np.ndarray):
        same = isinstance(theirs, np.ndarray) and mine.dtype == theirs.dtype and mine.shape == theirs.shape
        return "" if same and mine.tobytes() == theirs.tobytes() else path
    if isinstance(mine, Mapping):
        if not isinstance(theirs, Mapping) or list(mine) != list(theirs):
            return path
        return _first(difference(part, theirs[key], f"{path}[{key!r}]") for key, part in mine.items())
    if isinstance(mine, tuple | list):
        if not isinstance(theirs, tuple | list) or len(mine) != len(theirs):
            return path
        return _first(difference(part, theirs[at], f"{path}[{at}]") for at, part in enumerate(mine))
    if dataclasses.is_dataclass(mine) and not isinstance(mine, type):
        names = [field.name for field in dataclasses.fields(mine)]
        return _first(difference(getattr(mine, name), getattr(theirs, name, None), f"{path}.{name}") for name in names)
    equal = mine == theirs or (mine != mine and theirs != theirs)
    return "" if type(mine) is type(theirs) and bool(equal) else path


def _first(found: Iterable[str]) -> str:
    return next((path for path in found if path), "")
