"""What travels to a trainer: the results of the moved part of forward(), and the leaves still needed.

In: sample indices, on a data worker. Out: a tree `{"batch": ..., "crossing": [...]}`, in which `LeftTensor` stands for
an unneeded leaf. Without a split, or if it does not hold for a batch, `{"batch": ...}` alone: the trainer then runs the
user's own forward. `changed`: the data set has changed itself; `draws`: it draws random numbers. Errors of the data set
pass through. All classes here are plain: they are pickled into the job's package. Next: worker/split/controller.py
receives the tree.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from springtide.data.source import Fetch, Indices, as_batch
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.stage import Pipeline
from springtide.dataworker.split.program import arguments
from springtide.dataworker.split.program.moved_program import defaulting_to
from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.reachable_state import CopyWatch

Run = Callable[[Sequence[Any]], Sequence[Any] | None]


@dataclass(frozen=True, slots=True)
class LeftTensor:
    """Stands for a tensor that was not sent: what is known of it without its data."""

    number: int
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, number: int, leaf: torch.Tensor) -> "LeftTensor":
        """For this tensor, the leaf of that number."""
        return cls(number, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))


@dataclass(frozen=True, slots=True)
class FirstStage:
    """The first stage: reads and collates samples, and runs the moved part on the same device."""

    fetch: Fetch
    call: arguments.ModelCall | None = None
    """How the loop calls the model with a batch; None: nothing of forward() has moved."""
    run: Run | None = None
    """The first part of what has moved; None: it runs elsewhere, and gets the leaves as they are."""
    left: tuple[tuple[int, arguments.Path], ...] = ()
    """Leaves that the trainer does not need, by their number."""
    watch: CopyWatch = field(default_factory=CopyWatch, compare=False)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    """Torch's default type in the trainer: the data set is to have the same."""

    def __call__(self, indices: Indices) -> Any:
        """What becomes of these samples."""
        return self.keeping(indices, ())

    def keeping(self, indices: Indices, asked: Sequence[int]) -> Any:
        """The same, with some of the `left` leaves, which a trainer has asked for by their number."""
        self.watch.begin(dataset=self.fetch)
        before = batch_rng.mark()
        with defaulting_to(self.dtype):
            batch = as_batch(self.fetch(indices))
        told: dict[str, Any] = {"draws": True} if batch_rng.mark() != before else {}
        made = self.made(batch, asked)
        if changed := self.watch.changed():
            told["changed"] = changed
        return {**made, **told}

    def made(self, batch: Any, asked: Sequence[int]) -> dict[str, Any]:
        """What becomes of a batch that was read."""
        if self.call is None:
            return {"batch": batch}
        try:
            crossing: Sequence[Any] | None = pytree.flatten(self.call.fill(batch))[0]
            crossing = self.run(crossing) if self.run is not None and crossing is not None else crossing
        except arguments.Another as error:
            return {"batch": batch, "unsplit": str(error)}
        except Exception as error:  # whatever a part of the user's forward may raise: it raises again in the trainer
            return {"batch": batch, "unsplit": f"{type(error).__name__}: {error}"}
        if crossing is None:
            return {"batch": batch, "unsplit": _why(self.run)}
        left = {path: functools.partial(LeftTensor.of, number) for number, path in self.left if number not in asked}
        return {"batch": replaced(batch, left), "crossing": list(crossing)}


@dataclass(frozen=True, slots=True)
class LaterStage:
    """A further stage: continues with the results of the stage before."""

    run: Run

    def __call__(self, made: Any) -> Any:
        """The same tree, one stage further."""
        if not isinstance(made, Mapping) or "crossing" not in made:
            return made
        try:
            crossing = self.run(made["crossing"])
        except Exception as error:  # as above: it raises again in the trainer
            return {**_without(made), "unsplit": f"{type(error).__name__}: {error}"}
        if crossing is None:
            return {**_without(made), "unsplit": _why(self.run)}
        return {**made, "crossing": list(crossing)}


def tried(pipeline: Pipeline, batch: Any) -> Any:
    """What becomes of a batch that is here already, without the data set."""
    first, *others = pipeline.stages
    made = first.run.made(batch, ())  # type: ignore[attr-defined]
    for stage in others:
        made = stage.run(made)
    return made


def _without(made: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in made.items() if name != "crossing"}


def _why(run: Any) -> str:
    return getattr(run, "why", "") or "it is not of the kind that the split was made for"


def dtype_of(left: LeftTensor) -> torch.dtype:
    """The type that a leaf left behind has."""
    found = getattr(torch, left.dtype, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"a leaf was left behind with type {left.dtype!r}, which torch does not know")
    return found


def replaced(batch: Any, places: Mapping[arguments.Path, Callable[[Any], Any]]) -> Any:
    """A batch with something else at some places, made of what was there; all the rest is the same objects.

    Places that this batch does not have (its list is shorter, a key is missing) are passed over.
    """
    if not places:
        return batch
    if () in places:
        return places[()](batch)
    inner: dict[Any, dict[arguments.Path, Callable[[Any], Any]]] = {}
    for (step, *rest), change in places.items():
        inner.setdefault(step, {})[tuple(rest)] = change
    if isinstance(batch, tuple):
        parts = [replaced(one, inner.get(("item", i), {})) for i, one in enumerate(batch)]
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
    """A batch with something in every place that was left; where there is none, the batch itself."""
    if isinstance(batch, LeftTensor):
        return fill(batch)
    if isinstance(batch, torch.Tensor | str | bytes | int | float | None):
        return batch
    if isinstance(batch, Mapping):
        changes = {key: new for key, one in batch.items() if (new := filled(one, fill)) is not one}
        return _with_items(batch, changes) if changes else batch
    if isinstance(batch, tuple | list):
        parts = [filled(one, fill) for one in batch]
        if all(new is one for new, one in zip(parts, batch, strict=True)):
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


def _with_items(batch: Any, changes: Mapping[Any, Any]) -> Any:
    changed = copy.copy(batch)
    for key, new in changes.items():
        changed[key] = new
    return changed
