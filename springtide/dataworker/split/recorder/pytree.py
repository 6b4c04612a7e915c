"""Flattens a call's arguments into leaves, and rebuilds them. Split programs read and write leaves.

In: trees of tuples, lists, dicts, named tuples, dataclasses and types known to torch's pytree. Out: the leaves in
order, and a `TreeShape` that rebuilds the tree. A list of strings counts as one leaf, because it has one string for
each sample. An object that cannot be rebuilt is also one leaf.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from springtide.dataworker.transport import layout


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The structure of a tree, without its leaves."""

    kind: Any = None
    """Type of this node; None for a leaf."""
    context: Any = None
    """Keys of a dict, field names of a dataclass, or the pytree context."""
    children: tuple["TreeShape", ...] = ()

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        rest = iter(leaves)
        tree = self._take(rest)
        if next(rest, self) is not self:
            raise ValueError(f"{len(leaves)} leaves are too many for this tree")
        return tree

    def _take(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        parts = [child._take(leaves) for child in self.children]
        if self.kind is list or self.kind is tuple:
            return self.kind(parts)
        if self.kind is dict:
            return dict(zip(self.context, parts, strict=True))
        if hasattr(self.kind, "_fields"):  # torch.return_types are tuples too, but their constructor differs
            return self.kind(*parts)
        if self.kind in pytree.SUPPORTED_NODES:
            return pytree.SUPPORTED_NODES[self.kind].unflatten_fn(parts, self.context)
        made = object.__new__(self.kind)
        for name, part in zip(self.context, parts, strict=True):
            object.__setattr__(made, name, part)
        return made


LEAF = TreeShape()
TEXT = str, bytes


def flatten(tree: Any) -> tuple[list[Any], TreeShape]:
    """Return the leaves of a tree from left to right, and its structure."""
    found: list[Any] = []
    return found, _walk(tree, found)


def _walk(tree: Any, found: list[Any]) -> TreeShape:
    if isinstance(tree, torch.Tensor) or is_text(tree):
        found.append(tree)
        return LEAF
    kind = type(tree)
    context: Any = None
    parts: Sequence[Any]
    if kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(kind, "_fields")):
        parts = tree
    elif kind is dict:
        context, parts = tuple(tree), tuple(tree.values())
    elif kind in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(tree)
        parts = tuple(children)
    elif layout.is_record(tree):
        context = tuple(field.name for field in dataclasses.fields(tree))
        parts = tuple(getattr(tree, name) for name in context)
    else:
        found.append(tree)
        return LEAF
    return TreeShape(kind, context, tuple([_walk(part, found) for part in parts]))


def is_text(tree: Any) -> bool:
    """Return True for a list of strings, which is a single leaf."""
    if type(tree) not in (list, tuple) or not tree or not isinstance(tree[0], TEXT):
        return False
    return all(isinstance(item, TEXT) for item in tree)


Replacement = tuple[Any, Any, Any, Any]
"""One replacement of a leaf: the container, the key in the container, and the old and the new leaf at that key."""


@contextmanager
def substituted(tree: Any, change: Callable[[Any], Any]) -> Iterator[Any]:
    """Replace the leaves of a tree inside this context.

    Lists, dicts and dataclasses stay the same objects, so that their owners see all writes. At exit, each container
    gets its own leaf back, unless user code has put a different object there.
    """
    undo: list[Replacement] = []
    try:
        yield substitute(tree, change, undo)
    finally:
        restore(undo)


def restore(undo: Sequence[Replacement]) -> None:
    for container, key, new, old in reversed(undo):
        if _get(container, key) is new:
            _put(container, key, old)


def substitute(tree: Any, change: Callable[[Any], Any], undo: list[Replacement]) -> Any:
    """Return the tree with replaced leaves. `undo` gets the replacements inside containers, for `restore`."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    kind = type(tree)
    if is_text(tree):
        return change(tree)
    if kind is list or (isinstance(tree, dict) and (kind is dict or kind in pytree.SUPPORTED_NODES)):
        for key in range(len(tree)) if kind is list else tuple(tree):
            _replace(tree, key, substitute(tree[key], change, undo), undo)
        return tree
    if kind is tuple or (isinstance(tree, tuple) and hasattr(kind, "_fields")):
        parts = [substitute(part, change, undo) for part in tree]
        if all(new is old for new, old in zip(parts, tree, strict=True)):
            return tree
        return kind(parts) if kind is tuple else kind(*parts)
    if kind in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(tree)
        parts = [substitute(part, change, undo) for part in children]
        if all(new is old for new, old in zip(parts, children, strict=True)):
            return tree
        return pytree.SUPPORTED_NODES[kind].unflatten_fn(parts, context)
    if layout.is_record(tree):
        for field in dataclasses.fields(tree):
            _replace(tree, field.name, substitute(getattr(tree, field.name), change, undo), undo)
        return tree
    return change(tree)


def _replace(tree: Any, key: Any, new: Any, undo: list[Replacement]) -> None:
    old = _get(tree, key)
    if new is not old:
        _put(tree, key, new)
        undo.append((tree, key, new, old))


def _get(tree: Any, key: Any) -> Any:
    """Return an item or attribute; None if user code has removed it."""
    if isinstance(tree, list):
        return tree[key] if key < len(tree) else None
    return tree.get(key) if isinstance(tree, dict) else getattr(tree, key, None)


def _put(tree: Any, key: Any, value: Any) -> None:
    if isinstance(tree, list | dict):
        tree[key] = value
    else:
        object.__setattr__(tree, key, value)
