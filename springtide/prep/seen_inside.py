"""Look into what a forward() returns, whatever it is: containers, and attributes of objects of any class.

In: an output. Out: everything in it, with the way to it, so that two outputs can be compared and their tensors
differentiated. Nothing is rebuilt of it: what forward() returns, only forward() makes. Used by: prep/verify.py.
"""

import types
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import nn

from springtide.prep import leaves
from springtide.prep.statefulness import Refused

PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device)
OPAQUE = (*PLAIN, torch.Tensor, nn.Module, types.FunctionType, types.MethodType, types.ModuleType, Set)
"""What is compared as it is."""
MOST = 100_000  # parts of an output: more would take longer to compare than a forward does


def unknown(output: Any) -> str:
    """Name of the first class in an output that cannot be taken apart and put together again; "": there is none."""
    for one in leaves.flatten(output)[0]:
        if type(one) is not torch.Tensor and not isinstance(one, PLAIN) and not leaves.is_text(one):
            return type(one).__name__
    return ""


def has_parts(item: Any) -> bool:
    """Whether `walk` looks into it."""
    return not isinstance(item, OPAQUE) and (isinstance(item, Mapping | list | tuple) or bool(_attributes(item)))


def walk(output: Any) -> Iterator[tuple[str, Any]]:
    """Everything in it, containers and objects too, each with the way to it; what is there twice comes once."""
    seen: dict[int, Any] = {}
    queue: list[tuple[str, Any]] = [("", output)]
    while queue:
        path, item = queue.pop()
        if id(item) in seen and not isinstance(item, PLAIN):
            continue
        seen[id(item)] = item  # kept: another object must not get its number
        yield path, item
        if isinstance(item, OPAQUE):
            continue
        if len(seen) > MOST:
            raise Refused(f"forward() returns an object of more than {MOST} parts ({type(output).__name__})")
        if isinstance(item, Mapping):
            queue += [(f"{path}[{key!r}]", part) for key, part in item.items()]
        elif isinstance(item, list | tuple):
            queue += [(f"{path}[{at}]", part) for at, part in enumerate(item)]
        queue += [(f"{path}.{name}", part) for name, part in _attributes(item).items()]


def tensors(output: Any) -> list[torch.Tensor]:
    """Its tensors, in the order of `walk`."""
    return [item for _, item in walk(output) if isinstance(item, torch.Tensor)]


def _attributes(item: Any) -> dict[str, Any]:
    slots = [name for kind in type(item).__mro__ for name in _slots(kind)]
    return {name: getattr(item, name) for name in slots if hasattr(item, name)} | getattr(item, "__dict__", {})


def _slots(kind: type) -> tuple[str, ...]:
    own = vars(kind).get("__slots__", ())
    return (own,) if isinstance(own, str) else tuple(name for name in own if name not in ("__dict__", "__weakref__"))
