"""What forward() may read of a model besides parameters and buffers: plain attributes. Whether they are as they were.

In: split_forward.py. A part of forward() that runs elsewhere was made with the attributes of a moment: once one has
changed, the user's own forward runs. (One that assigns attributes itself is not split at all: prep/untouched.py.)
"""

from typing import Any, NamedTuple

import torch
from torch import nn

TORCHS_OWN = frozenset(vars(nn.Module()))
SIZED = (list, dict, set)


class Seen(NamedTuple):
    """One module's attributes: where they are looked up, and what they were."""

    name: str
    now: dict[str, Any]
    were: dict[str, tuple[Any, int]]
    size: int


def look(model: nn.Module, but: frozenset[int] = frozenset()) -> list[Seen]:
    """The attributes of all modules of a model but those with these ids; torch's own are not among them."""
    seen = []
    for name, module in model.named_modules():
        if id(module) in but:
            continue
        now = vars(module)
        were = {key: _mark(value) for key, value in now.items() if key not in TORCHS_OWN}
        seen.append(Seen(name, now, were, len(now)))
    return seen


def changed(seen: list[Seen], *, but: frozenset[str] = frozenset(("forward",))) -> str:
    """The first attribute that is another now, by its name; "" where none is."""
    for name, now, were, size in seen:
        for key, (value, mark) in were.items():
            held = now.get(key, seen)
            if not (held is value and mark < 0) and not _same(held, value, mark):
                return _spelled(name, key)
        if len(now) != size:
            fresh = now.keys() - were.keys() - TORCHS_OWN - but
            if fresh:
                return _spelled(name, min(fresh))
    return ""


def _mark(value: Any) -> tuple[Any, int]:
    if isinstance(value, torch.Tensor):
        return value, 0 if value.is_inference() else value._version
    return value, len(value) if isinstance(value, SIZED) else -1


def _same(held: Any, value: Any, mark: int) -> bool:
    if held is value:
        return _mark(held)[1] == mark
    plain = type(held) is type(value) and isinstance(held, bool | int | float | str)
    return plain and bool(held == value)


def _spelled(module: str, key: str) -> str:
    return f"self.{module}.{key}" if module else f"self.{key}"
