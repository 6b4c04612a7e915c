"""The second rung: dynamo's first graph. What comes after a break in it (`.item()`, other libraries) stays as it is.

In: a model that torch.export does not take. Out: the first graph as `Captured`: dynamo reads forward up to its first
break and is stopped there, so nothing of the process is rewritten. The trainer runs the user's own forward: next,
prep/hearing.py finds in it what this graph gives.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from springtide.prep import capture, standins
from springtide.prep.capture import Call
from springtide.prep.captured import Captured, State, find_state
from springtide.prep.statefulness import Refused

NAME = "dynamo's first graph"
SETTINGS: dict[str, Any] = {
    "capture_dynamic_output_shape_ops": True,
    "capture_scalar_outputs": True,
    "specialize_float": True,  # else eps and momentum become inputs
}


class _Stop(Exception):
    """The first graph is all that is wanted."""


def capture_first(model: nn.Module, whole: dict[str, nn.Module], calls: Sequence[Call]) -> Captured:
    """Have dynamo read forward, up to the end of its first graph."""
    from torch import _dynamo as dynamo

    call = calls[0]
    given = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
    for leaf in given:
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            dynamo.maybe_mark_dynamic(leaf, 0)
    args, kwargs = call.shape.rebuild(given)
    first: list[tuple[fx.GraphModule, Sequence[Any]]] = []

    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        first.append((module, inputs))
        raise _Stop

    with standins.standing_in(list(whole.values())), dynamo.config.patch(SETTINGS):
        try:
            torch.compile(model.forward, backend=backend)(*args, **kwargs)
        except Exception:
            if not first:
                raise
    if not first:
        raise Refused("dynamo found no graph in forward()")
    return _captured(model, whole, *first[0], given, call)


def _captured(
    model: nn.Module,
    whole: dict[str, nn.Module],
    module: fx.GraphModule,
    inputs: Sequence[Any],
    given: Sequence[Any],
    call: Call,
) -> Captured:
    own, leaves_of = _copy(module), dict[str, int]()
    graph = own.graph
    states: dict[str, State] = {}
    shown: dict[int, Any] = {}
    sizes: list[tuple[str, fx.Node]] = []
    paths = _paths(model)
    at = {id(leaf): number for number, leaf in enumerate(given) if isinstance(leaf, torch.Tensor)}
    originals = module.graph.find_nodes(op="placeholder")
    for original, node, value in zip(originals, graph.find_nodes(op="placeholder"), inputs, strict=True):
        if id(value) in at:
            leaves_of[node.name] = at[id(value)]
            shown[at[id(value)]] = original.meta["example_value"]
        elif isinstance(value, torch.Tensor):
            states[node.name] = _state(model, paths, value)
        else:
            sizes.append((str(original.meta["example_value"]), node))
    _measure(graph, sizes, {node.name: shown[number] for node in graph.find_nodes(op="placeholder")
                            if (number := leaves_of.get(node.name)) is not None})  # fmt: skip
    own.recompile()
    return Captured(
        rung=NAME,
        module=own,
        leaves=leaves_of,
        states=states,
        guard=capture.guard_of(call, shown, {}, ()),
        tables=list(whole.values()),
        table_paths=list(whole),
        rebuild=tuple,
    )


def _measure(graph: fx.Graph, sizes: Sequence[tuple[str, fx.Node]], shown: dict[str, Any]) -> None:
    """Sizes that dynamo gives as inputs, one perhaps twice, are read off the leaves instead."""
    begin = next(node for node in graph.nodes if node.op != "placeholder")
    for text, node in sizes:
        places = [(name, at) for name, fake in shown.items() for at, size in enumerate(fake.shape) if str(size) == text]
        if node.users and not places:
            raise Refused("forward() reads a number that is no size of an input")
        if node.users:
            leaf = next(one for one in graph.find_nodes(op="placeholder") if one.name == places[0][0])
            with graph.inserting_before(begin):
                size = graph.call_function(torch.ops.aten.sym_size.int, (leaf, places[0][1]))
            node.replace_all_uses_with(size)
        graph.erase_node(node)


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _paths(model: nn.Module) -> dict[int, tuple[str, str]]:
    named = {id(tensor): ("buffer", path) for path, tensor in model.named_buffers()}
    return named | {id(tensor): ("parameter", path) for path, tensor in model.named_parameters()}


def _state(model: nn.Module, paths: dict[int, tuple[str, str]], value: torch.Tensor) -> State:
    if id(value) not in paths:
        raise Refused("forward() reads a tensor that is neither an input nor a parameter or buffer of the model")
    kind, path = paths[id(value)]
    return find_state(model, path, "parameter" if kind == "parameter" else "buffer")
