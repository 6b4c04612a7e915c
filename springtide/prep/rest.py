"""The trainer's part of a split program: run on the live model, from what crossed.

In: crossing values, and the input leaves that are still read. Parameters, buffers and tables are those that the modules
hold at the moment of the call. Out: what forward() returns. Called by: train/split_forward.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from springtide.prep import programs, standins
from springtide.prep.captured import Captured, State, is_table
from springtide.prep.stages import put
from springtide.prep.statefulness import Sides


class Rest:
    """A callable over (crossing, leaves)."""

    def __init__(
        self,
        program: Captured,
        sides: Sides,
        stays: Sequence[fx.Node],
        crossing: Sequence[fx.Node],
        lies: Callable[[fx.Node], str],
    ) -> None:
        graph = program.graph
        output = graph.output_node()
        free = _needed(stays, output, sides)
        own = [*stays, *free]
        read = {one for node in (*own, output) for one in node.all_input_nodes}
        placeholders = [node for node in graph.find_nodes(op="placeholder") if node in read]
        leaf_nodes = [node for node in placeholders if node.name in program.leaves]
        state_nodes = [node for node in placeholders if node.name in program.states]
        (outputs,) = output.args
        inside, attributes = programs.extract(
            graph,
            program.module,
            own,
            [*crossing, *leaf_nodes, *state_nodes],
            outputs,  # type: ignore[arg-type]
        )
        self.tables = _call_tables(inside, program)
        inside.lint()
        self._code = programs.compiled(inside, {**attributes, **self.tables})
        self._leaves = [program.leaves[node.name] for node in leaf_nodes]
        self._states: list[State] = [program.states[node.name] for node in state_nodes]
        self._devices = [lies(node) for node in crossing]
        self._on_cpu = all(device == "cpu" for device in self._devices)
        self._rebuild = program.rebuild
        self.needs = frozenset(self._leaves)
        self.source = self._code.source

    def __call__(self, crossing: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """What forward() returns for these."""
        states = [state.live() for state in self._states]
        return self._rebuild(self._code(*self._put(crossing), *[leaves[at] for at in self._leaves], *states))

    def _put(self, crossing: Sequence[Any]) -> Sequence[Any]:
        if self._on_cpu:
            return crossing
        return [put(one, device) for one, device in zip(crossing, self._devices, strict=True)]


def _needed(stays: Sequence[fx.Node], output: fx.Node, sides: Sides) -> list[fx.Node]:
    wanted: set[fx.Node] = set()
    queue = [one for node in (*stays, output) for one in node.all_input_nodes]
    while queue:
        node = queue.pop()
        if node in sides.free and node not in wanted:
            wanted.add(node)
            queue.extend(node.all_input_nodes)
    return [node for node in sides.free_in_order if node in wanted and node.op != "placeholder"]


def _call_tables(graph: fx.Graph, program: Captured) -> dict[str, Any]:
    """Where a stand-in's node was, the live module is called."""
    callers: dict[str, Any] = {}
    for node in list(graph.nodes):
        if is_table(node):
            number, layout, inputs = node.args
            name = f"table_{number}"
            callers.setdefault(name, _Caller(program.tables[number]))
            with graph.inserting_before(node):
                caller = graph.create_node("get_attr", name)
                called = graph.call_function(_call, (caller, layout, inputs))
            node.replace_all_uses_with(called)
            graph.erase_node(node)
    return callers


class _Caller:
    def __init__(self, module: Any) -> None:
        self.module = module


def _call(caller: _Caller, layout: str, inputs: Sequence[Any]) -> list[Any]:
    return standins.call(caller.module, layout, inputs)
