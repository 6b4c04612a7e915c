"""The third rung: dynamo's first graph. What comes after a break in it (`.item()`, other libraries) stays as it is.

In: a model that torch.export does not take. Out: the first graph as `Captured`, and a forward that runs the user's own
code under dynamo, where that first graph is answered from what crossed. All leaves are read there, by dynamo's guards:
where they choose another graph than the one that was captured, it is computed in full, so a batch is never wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from springtide.prep import capture, standins
from springtide.prep.capture import Call
from springtide.prep.captured import Captured, State, find_state, is_table
from springtide.prep.leaves import Shape
from springtide.prep.rest import Rest
from springtide.prep.statefulness import Refused

NAME = "dynamo's first graph"
SETTINGS: dict[str, Any] = {
    "capture_dynamic_output_shape_ops": True,
    "capture_scalar_outputs": True,
    "specialize_float": True,  # else eps and momentum become inputs
}


class First:
    """The user's forward under dynamo, and the graph that it begins with."""

    def __init__(self, model: nn.Module, whole: dict[str, nn.Module]) -> None:
        self._model, self._whole = model, whole
        self._begins: tuple[fx.GraphModule, Sequence[Any]] | None = None
        self._source = ""
        self._answer: Callable[[Sequence[Any], Mapping[str, Any]], Any] | None = None
        self._crossing: Sequence[Any] | None = None
        self._compiled: Callable[..., Any] = torch.compile(model.forward, backend=self._backend)

    def capture(self, calls: Sequence[Call]) -> Captured:
        """Run forward once under dynamo and take its first graph."""
        call = calls[0]
        given = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        from torch import _dynamo as dynamo

        for leaf in given:
            if isinstance(leaf, torch.Tensor) and leaf.dim():
                dynamo.maybe_mark_dynamic(leaf, 0)
        args, kwargs = call.shape.rebuild(given)
        with standins.standing_in(list(self._whole.values())):
            self._run(args, kwargs)
        if self._begins is None:
            raise Refused("dynamo found no graph in forward()")
        module, inputs = self._begins
        self._source, self._begins = module.code, None
        return self._captured(module, inputs, given, call)

    def completed(self, rest: Rest, shape: Shape) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        """The whole of the trainer's part, over (crossing, leaves)."""
        return lambda crossing, leaves: self.run(rest, crossing, *shape.rebuild(leaves))

    def run(self, rest: Rest, crossing: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward, whose first graph is answered by `rest` from what crossed."""
        self._answer, self._crossing = rest.inside, crossing
        try:
            with standins.standing_in(list(self._whole.values()), live=not standins.trying()):
                return self._run(args, kwargs)
        finally:
            self._answer = self._crossing = None

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch import _dynamo as dynamo

        with dynamo.config.patch(SETTINGS):
            return self._compiled(*args, **kwargs)

    def _backend(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What dynamo runs in place of a graph. The first one's text is known: that is the one that may be answered."""
        if self._begins is None and not self._source:
            self._begins = module, inputs
        text, plain = module.code, _with_tables(module, list(self._whole.values()))
        names = [node.name for node in module.graph.find_nodes(op="placeholder")]

        def run(*given: Any) -> Any:
            crossing, answer = self._crossing, self._answer
            if crossing is None or answer is None or text != self._source:
                return plain(*given)
            self._crossing = None
            return answer(crossing, dict(zip(names, given, strict=True)))

        return run

    def _captured(self, module: fx.GraphModule, inputs: Sequence[Any], given: Sequence[Any], call: Call) -> Captured:
        own, leaves_of = _copy(module), dict[str, int]()
        graph = own.graph
        states: dict[str, State] = {}
        shown: dict[int, Any] = {}
        sizes: list[tuple[str, fx.Node]] = []
        paths = _paths(self._model)
        at = {id(leaf): number for number, leaf in enumerate(given) if isinstance(leaf, torch.Tensor)}
        originals = module.graph.find_nodes(op="placeholder")
        for original, node, value in zip(originals, graph.find_nodes(op="placeholder"), inputs, strict=True):
            if id(value) in at:
                leaves_of[node.name] = at[id(value)]
                shown[at[id(value)]] = original.meta["example_value"]
            elif isinstance(value, torch.Tensor):
                states[node.name] = _state(self._model, paths, value)
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
            tables=list(self._whole.values()),
            table_paths=list(self._whole),
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


def _with_tables(module: fx.GraphModule, whole: Sequence[nn.Module]) -> Callable[..., Any]:
    """A graph whose lookups go to the live tables."""
    own = _copy(module)
    for node in list(own.graph.nodes):
        if is_table(node):
            number, layout, inputs = node.args
            with own.graph.inserting_before(node):
                called = own.graph.call_function(_Lookup(number, whole[number]), (layout, inputs))
            node.replace_all_uses_with(called)
            own.graph.erase_node(node)
    own.recompile()
    forward: Callable[..., Any] = own.forward
    return forward


class _Lookup:
    """A table's call within a graph of dynamo's."""

    def __init__(self, number: int, module: nn.Module) -> None:
        self._module = module
        self.__name__ = f"table_{number}"

    def __call__(self, layout: str, inputs: Any) -> list[torch.Tensor]:
        return standins.call(self._module, layout, inputs)


def _paths(model: nn.Module) -> dict[int, tuple[str, str]]:
    named = {id(tensor): ("buffer", path) for path, tensor in model.named_buffers()}
    return named | {id(tensor): ("parameter", path) for path, tensor in model.named_parameters()}


def _state(model: nn.Module, paths: dict[int, tuple[str, str]], value: torch.Tensor) -> State:
    if id(value) not in paths:
        raise Refused("forward() reads a tensor that is neither an input nor a parameter or buffer of the model")
    kind, path = paths[id(value)]
    return find_state(model, path, "parameter" if kind == "parameter" else "buffer")
