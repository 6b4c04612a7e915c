"""A part of a graph as a program of its own: plain source that any process compiles, and its constants.

In: nodes of a captured graph. Out: `Program`, which pickles as text and tensors (a GraphModule would be traced again
when it is read). Next: prep/stages.py makes a data worker's stages of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx


class Program:
    """Source of a function over tensors, and what it needs beside them.

    Constants travel in main memory; they are put where they were used when the program is first run.
    """

    def __init__(
        self,
        source: str,
        names: Mapping[str, Any],
        constants: Mapping[str, Any],
        devices: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.names = dict(names)
        tensors = {name: value for name, value in constants.items() if isinstance(value, torch.Tensor)}
        self.devices = dict(devices or {name: str(value.device) for name, value in tensors.items()})
        self.constants = {**constants, **{name: value.cpu() for name, value in tensors.items()}}
        scope = dict(self.names)
        exec(compile(source, "<springtide program>", "exec"), scope)
        self._run: Callable[..., Any] = scope["forward"]
        self._self: SimpleNamespace | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Run it."""
        if self._self is None:
            there = {name: self.constants[name].to(device) for name, device in self.devices.items()}
            self._self = SimpleNamespace(**{**self.constants, **there})
        return self._run(self._self, *inputs)

    def __reduce__(self) -> Any:
        return Program, (self.source, self.names, self.constants, self.devices)


def extract(
    graph: fx.Graph, root: torch.nn.Module, nodes: Iterable[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[Any]
) -> tuple[fx.Graph, dict[str, Any]]:
    """These nodes as a graph that is given `inputs` and gives back `outputs`; with what its get_attr nodes name."""
    own, made = fx.Graph(), dict[fx.Node, fx.Node]()
    taken = set(nodes)
    attributes: dict[str, Any] = {}
    for node in inputs:
        made[node] = own.placeholder(node.name)
    for node in graph.nodes:
        if node in taken and node not in made:
            if node.op == "get_attr":
                name = str(node.target).replace(".", "_")
                attributes[name] = _attribute(root, str(node.target))
                made[node] = own.create_node("get_attr", name, name=node.name)
                continue
            made[node] = own.node_copy(node, lambda one: made[one])
    own.output(fx.map_arg(tuple(outputs), lambda one: made[one]))
    return own, attributes


def compiled(graph: fx.Graph, constants: Mapping[str, Any]) -> Program:
    """The source of a graph. Graphs inside (of torch.no_grad() and the like) become programs too."""
    code = graph.python_code("self")
    inner = {
        name: compiled(value.graph, _attributes(value)) if isinstance(value, fx.GraphModule) else value
        for name, value in constants.items()
    }
    return Program(code.src, {name: value for name, value in code.globals.items() if name != "self"}, inner)


def _attributes(module: fx.GraphModule) -> dict[str, Any]:
    named = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    return {name: _attribute(module, name) for name in named}


def _attribute(root: Any, path: str) -> Any:
    found = root
    for part in path.split("."):
        found = getattr(found, part)
    return found
