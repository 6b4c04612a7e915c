"""What of a batch travels to a trainer: what the moved part of forward() has made of it, and the leaves still needed.

In: sample indices, on a data worker. Out: a tree `{"batch": ..., "crossing": [...]}`, in which `Left` stands for a leaf
that nobody needs. Without a split, or where it does not hold for a batch, `{"batch": ...}` alone: the trainer then runs
the user's own forward. What the data set raises goes through. Everything here is made of plain classes: it is pickled
into the job's package. Next: train/splitting.py receives the tree.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from springtide.data.source import Fetch, Indices, as_batch
from springtide.prep import arguments, leaves

Run = Callable[[Sequence[Any]], Sequence[Any] | None]


@dataclass(frozen=True, slots=True)
class Left:
    """Instead of a tensor that was left behind: what can be said of it without having it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class First:
    """The first stage: reads and collates samples, and runs what of forward() goes along on the same device."""

    fetch: Fetch
    call: arguments.Call | None = None
    """How the loop calls the model with a batch; None: nothing of forward() has moved."""
    run: Run | None = None
    """The first part of what has moved; None: it runs elsewhere, and gets the leaves as they are."""
    left: tuple[tuple[int, arguments.Path], ...] = ()
    """Leaves that the trainer does not need, by their number."""

    def __call__(self, indices: Indices) -> Any:
        """What becomes of these samples."""
        return self.keeping(indices, ())

    def keeping(self, indices: Indices, asked: Sequence[int]) -> Any:
        """The same, with some of the `left` leaves, which a trainer has asked for by their number."""
        batch = as_batch(self.fetch(indices))
        if self.call is None:
            return {"batch": batch}
        try:
            crossing: Sequence[Any] | None = leaves.flatten(self.call.fill(batch))[0]
            crossing = self.run(crossing) if self.run is not None and crossing is not None else crossing
        except Exception as error:  # whatever a part of the user's forward may raise: it raises again in the trainer
            return {"batch": batch, "unsplit": f"{type(error).__name__}: {error}"}
        if crossing is None:
            return {"batch": batch, "unsplit": "it is not of the kind that the split was made for"}
        left = [path for number, path in self.left if number not in asked]
        return {"batch": strip(batch, left), "crossing": list(crossing)}


@dataclass(frozen=True, slots=True)
class Later:
    """A further stage: goes on with what the one before has made of the leaves."""

    run: Run

    def __call__(self, made: Any) -> Any:
        """The same tree, one stage further."""
        if not isinstance(made, Mapping) or "crossing" not in made:
            return made
        crossing = self.run(made["crossing"])
        if crossing is None:
            return {"batch": made["batch"], "unsplit": "it is not of the kind that the split was made for"}
        return {**made, "crossing": list(crossing)}


def strip(batch: Any, left: Sequence[arguments.Path]) -> Any:
    """The same batch without the tensors at these places."""
    for path in left:
        batch = replaced(batch, path, lambda leaf: Left(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")))
    return batch


def dtype_of(left: Left) -> torch.dtype:
    """The type that a leaf left behind has."""
    found = getattr(torch, left.dtype, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"a leaf was left behind with type {left.dtype!r}, which torch does not know")
    return found


def replaced(batch: Any, path: arguments.Path, change: Callable[[Any], Any]) -> Any:
    """A batch with something else at one place; all the rest is the same objects."""
    if not path:
        return change(batch)
    (kind, name), rest = path[0], path[1:]
    if kind == "attr":
        changed = copy.copy(batch)
        object.__setattr__(changed, name, replaced(getattr(batch, name), rest, change))
        return changed
    if isinstance(batch, tuple):
        parts = [replaced(one, rest, change) if i == name else one for i, one in enumerate(batch)]
        return type(batch)._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    changed = copy.copy(batch)
    changed[name] = replaced(batch[name], rest, change)
    return changed
