"""A user's program as one graph, whichever rung of the ladder it came from: what each input of the graph is.

In: prep/capture.py. Next: prep/observing.py runs it once, prep/statefulness.py and prep/cut.py divide it.
"""

import linecache
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn

from springtide.prep.guard import Guard

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')
TORCH = os.path.dirname(torch.__file__)
PREP = os.path.dirname(__file__)


@dataclass(frozen=True, slots=True)
class State:
    """A placeholder that is no input of the model: a tensor of one of its modules, or a constant of the program."""

    kind: Literal["parameter", "buffer", "constant"]
    path: str
    """Under the model; a constant that no module holds has a made-up name."""
    value: torch.Tensor
    """As it was when the program was captured."""
    owner: nn.Module | None = None
    name: str = ""

    def live(self) -> torch.Tensor:
        """As it is now."""
        if self.owner is None:
            return self.value
        found: torch.Tensor = getattr(self.owner, self.name)
        return found


@dataclass(slots=True)
class Captured:
    """One graph of torch's operations, with placeholders for leaves and states."""

    rung: str
    module: fx.GraphModule
    leaves: dict[str, int]
    """Placeholder -> number of the leaf."""
    states: dict[str, State]
    """Placeholder -> what it is."""
    guard: Guard
    tables: Sequence[nn.Module]
    """By the number that `springtide::table` nodes have."""
    table_paths: Sequence[str]
    rebuild: Callable[[Sequence[Any]], Any]
    """From the graph's outputs to what forward returns."""
    mutated: set[str] = field(default_factory=set)
    """Placeholders of states that forward writes, as far as tracing tells."""

    @property
    def graph(self) -> fx.Graph:
        """The graph itself."""
        return self.module.graph


def find_state(model: nn.Module, path: str, kind: Literal["parameter", "buffer", "constant"]) -> State:
    """The state at a path of the model."""
    owner_path, _, name = path.rpartition(".")
    owner = model.get_submodule(owner_path)
    value = getattr(owner, name)
    return State(kind, path, value, owner, name)


def is_table(node: fx.Node) -> bool:
    """Whether a node is a lookup in a table that stands aside."""
    table = torch.ops.springtide.table
    return node.op == "call_function" and (node.target is table.default or node.target is table)


def users_line(stack: str | None) -> tuple[str, str]:
    """The innermost line of a stack that is the user's own, as ("model.py:12", its text); empty when none is."""
    frames = list(reversed(FRAME.findall(stack or "")))
    for installed in (False, True):  # a line of an installed model is better than none
        for path, number, _ in frames:
            if is_users(path, installed=installed):
                return place(path, int(number))
    return "", ""


def place(path: str, number: int) -> tuple[str, str]:
    """A line as people write it, and its text."""
    return f"{os.path.basename(path)}:{number}", linecache.getline(path, number).strip()


def is_users(path: str, *, installed: bool = False) -> bool:
    """Whether a file is neither torch's, nor Python's, nor this package's way of calling it.

    `installed`: files of other packages count too.
    """
    if path.startswith((TORCH, PREP, "<")):
        return False
    if f"{os.sep}site-packages{os.sep}" in path:
        return installed
    return not path.startswith(os.path.dirname(os.__file__))


def where(node: fx.Node) -> tuple[str, str]:
    """The user's line that a node comes from."""
    stack = node.meta.get("stack_trace")
    found = users_line(stack)
    if found[0]:
        return found
    for user in node.users:  # what torch itself puts in has no line: that of its first reader will do
        found = users_line(user.meta.get("stack_trace"))
        if found[0]:
            return found
    return "", ""


def operation(node: fx.Node) -> str:
    """A node's operation as people write it."""
    if is_table(node):
        return "table lookup"
    if node.op == "call_method":
        return str(node.target)
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet or node.target, "__name__", str(node.target))
    return str(name).removeprefix("wrap_with_")
