"""A captured program run on an example, node by node: what each gives, writes, draws and how long it takes.

In: prep/captured.py and the leaves of one batch. Tags and schemas of operations are not the whole truth (batch_norm
writes its buffers and says nothing of it), so what happens is looked at. Next: prep/statefulness.py, prep/costs.py.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from springtide.prep import standins
from springtide.prep.captured import Captured
from springtide.prep.untouched import same

RUNS = 3  # the least of these is a node's time: others share the cores


@dataclass(slots=True)
class Seen:
    """What one node did."""

    bytes: int | None = None
    """Of its value; None where the value cannot travel."""
    elements: int = 0
    seconds: float = 0.0
    storages: frozenset[int] = frozenset()
    """Memory that its value lies in."""
    writes: frozenset[int] = frozenset()
    """Memory that it wrote to in place."""
    random: bool = False
    device: str = "cpu"
    """Kind of device that it needs: that of its value or of anything it reads, if one is not in main memory."""
    lies: str = "cpu"
    """Device of its value."""
    leaf: Any = None
    """A value that is no tensor, such as a size."""


@dataclass(slots=True)
class Observed:
    """All nodes of a program by name."""

    nodes: dict[str, Seen] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """Placeholders of states whose content or version changed."""


def observe(program: Captured, leaves: Sequence[Any]) -> Observed:
    """Run the program on copies of its states; nothing of the user's is written."""
    found = Observed()
    with torch.no_grad(), standins.standing_in(program.tables):
        inputs = _inputs(program, leaves)
        read = [node.name for node in program.graph.find_nodes(op="placeholder") if node.users]
        before = {
            name: (inputs[name], inputs[name]._version, inputs[name].clone()) for name in read if name in program.states
        }
        _Watching(program.module, found).run(*inputs.values())
        for name, (now, version, was) in before.items():
            if now._version != version or not same(now, was):
                found.changed.add(name)
        for _ in range(RUNS):
            _Timing(program.module, found).run(*_inputs(program, leaves).values())
    return found


def _inputs(program: Captured, leaves: Sequence[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in program.leaves:
            leaf = leaves[program.leaves[node.name]]
            made[node.name] = leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
        else:
            value = program.states[node.name].live().detach()
            # what nobody reads is a table's: it may be large, and lie where a fork of this process cannot look
            made[node.name] = value.clone() if node.users else value
    return made


class _Operations(TorchDispatchMode):
    """Hears of every operation that is really run."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random = False
        self.writes: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(func, torch._ops.OpOverload):
            self.random |= torch.Tag.nondeterministic_seeded in func.tags
            for argument, given in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self.writes |= {memory(one) for one in tensors(given)}
            for name, given in (kwargs or {}).items():
                alias = next((one.alias_info for one in func._schema.arguments if one.name == name), None)
                if alias is not None and alias.is_write:
                    self.writes |= {memory(one) for one in tensors(given)}
        return func(*args, **(kwargs or {}))


class _Watching(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, found: Observed) -> None:
        super().__init__(module, garbage_collect_values=False)  # so that no memory is used twice
        self._found = found

    def run_node(self, node: fx.Node) -> Any:
        seen = self._found.nodes.setdefault(node.name, Seen())
        watch = _Operations()
        with watch:
            value = super().run_node(node)
        if node.op == "output":
            return value
        own = list(tensors(value))
        seen.random = watch.random or _says_random(node)
        seen.writes = frozenset(watch.writes)
        seen.storages = frozenset(memory(one) for one in own)
        seen.elements = sum(one.numel() for one in own)
        if isinstance(value, torch.Tensor):
            seen.bytes = value.numel() * value.element_size()
        elif isinstance(value, int | float):
            seen.bytes, seen.leaf = 8, value
        seen.lies = next((str(one.device) for one in own), "cpu")
        inputs = [one for given in node.all_input_nodes for one in tensors(self.env[given])]
        seen.device = next((one.device.type for one in (*own, *inputs) if one.device.type != "cpu"), "cpu")
        return value


class _Timing(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, found: Observed) -> None:
        super().__init__(module)
        self._found = found

    def run_node(self, node: fx.Node) -> Any:
        seen = self._found.nodes[node.name]
        begin = time.perf_counter()
        value = super().run_node(node)
        if seen.device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - begin
        seen.seconds = min(seen.seconds, took) if seen.seconds else took
        return value


def _says_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of a value of a node."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)


def memory(tensor: torch.Tensor) -> int:
    """A number for the memory that a tensor looks at, the same for all views of it."""
    return int(tensor.untyped_storage()._cdata)
