"""What a search beside the loop has found, written down there and read back in the process that trains.

In: a `Split`, made of a model that was this one once. Out: the same, bound to the live model: its modules and tensors
go by their paths, the script's own classes and functions by their names. Written by: prep/searching.py. Read by:
prep/beside.py. What is unpickled was written by our own child into memory that no other process has.
"""

import io
import pickle
import sys
import types
from typing import Any

import cloudpickle
import torch
from torch import nn

from springtide.prep.parts import Split, Unsplit

SCRIPT = "__main__"


Found = Split | Unsplit


def write(found: Found, model: nn.Module) -> bytes:
    """In the process that has searched."""
    written = io.BytesIO()
    _Pickler(written, model).dump(found)
    return written.getvalue()


def read(written: bytes, model: nn.Module) -> Found:
    """In the process that trains this model."""
    found: Found = _Unpickler(io.BytesIO(written), model).load()
    return found


def _parts(model: nn.Module) -> dict[int, tuple[str, str]]:
    """Modules and tensors of a model by their identity: a module's path, and what a tensor is called there."""
    found: dict[int, tuple[str, str]] = {}
    for path, part in model.named_modules():
        found[id(part)] = (path, "")
        for name, one in (*part._parameters.items(), *part._buffers.items(), *vars(part).items()):
            if isinstance(one, torch.Tensor):
                found[id(one)] = (path, name)
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """What is part of the model, and what the script has given a name, are the trainer's own."""

    def __init__(self, file: io.BytesIO, model: nn.Module) -> None:
        super().__init__(file)
        self._known = _parts(model)

    def persistent_id(self, item: Any) -> tuple[str, str] | None:
        """A path instead of a module or tensor."""
        return self._known.get(id(item)) if isinstance(item, nn.Module | torch.Tensor) else None

    def reducer_override(self, item: Any) -> Any:
        """Classes and functions go by name where cloudpickle would copy them: those of the script, and what is below a
        decorator, such as a function that is marked `@springtide.stateless` and known again by its identity."""
        if isinstance(item, type | types.FunctionType) and _has_name(item):
            return _own, (item.__module__, item.__qualname__, _depth(item))
        return super().reducer_override(item)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, model: nn.Module) -> None:
        super().__init__(file)
        self._model = model

    def persistent_load(self, place: tuple[str, str]) -> Any:
        path, name = place
        owner = self._model.get_submodule(path)
        return getattr(owner, name) if name else owner


def _has_name(item: Any) -> bool:
    """Whether it goes by a name that pickle itself would not find, or not take.

    The process that has searched has nothing of the script but copies: by their names the trainer has the originals.
    """
    bare, of_script = _named(item.__module__, item.__qualname__), str(item.__module__) == SCRIPT
    if bare is None:
        return of_script and "<locals>" not in item.__qualname__
    if bare is item:
        return of_script
    return _unwrapped(bare, _depth(item)) is item


def _own(module: str, name: str, depth: int) -> Any:
    found = _named(module, name)
    if found is None:
        raise AttributeError(f"{module} has no {name}")
    return _unwrapped(found, depth)


def _named(module: str, name: str) -> Any:
    """What goes by this name; None: nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _unwrapped(item: Any, depth: int) -> Any:
    """Without its outer decorators, so that so many are left."""
    for _ in range(_depth(item) - depth):
        item = item.__wrapped__
    return item


def _depth(item: Any) -> int:
    """How many decorators are around a function."""
    depth = 0
    while isinstance(item, types.FunctionType) and hasattr(item, "__wrapped__"):
        item, depth = item.__wrapped__, depth + 1
    return depth
