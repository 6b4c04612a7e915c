"""Algorithm 1, second half: what moves is grouped by device into stages, each a program that data workers run.

In: a captured program, the chosen cut, and what was observed. A stage takes the list that the one before made and gives
the list that the next one needs: what later stages or the trainer read is handed on. Tensors travel in main memory and
are put back on their device where they are used. Out: `Stage`s for prep/stage.py's `Pipeline`. Next: prep/rest.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from springtide.prep import distinct, programs
from springtide.prep.captured import Captured
from springtide.prep.guard import Guard
from springtide.prep.programs import Program
from springtide.prep.stage import Stage
from springtide.prep.statefulness import Sides

Label = Callable[[fx.Node], str]
"""The device a node runs on."""


@dataclass(slots=True)
class Running:
    """What a data worker runs: checks a batch, where it is the first stage, and makes the next list of it."""

    program: Program
    guard: Guard | None
    takes: tuple[int, ...]
    """Which of the list given the program reads, in its order."""
    devices: tuple[str, ...]
    """Where the program wants each of those."""

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """The next list; None when the batch is not of the kind that the program was captured for."""
        if self.guard is not None and self.guard.refuses(given):
            return None
        inputs = [put(given[at], device) for at, device in zip(self.takes, self.devices, strict=True)]
        with torch.no_grad():
            made = self.program(*inputs)
        return [put(one, "cpu") for one in made]


def put(value: Any, device: str) -> Any:
    """A tensor on a device; anything else as it is."""
    return value.to(device) if isinstance(value, torch.Tensor) and str(value.device) != device else value


def group(nodes: Sequence[fx.Node], label: Label) -> list[list[fx.Node]]:
    """Nodes in stages of one device each: all that can run before another device must have been used."""
    left, done, found = list(nodes), set[fx.Node](), list[list[fx.Node]]()
    known = set(nodes)
    while left:
        ready = [node for node in left if all(one in done or one not in known for one in node.all_input_nodes)]
        device = min((label(node) for node in ready), key=lambda one: (one != "cpu", one))
        stage: list[fx.Node] = []
        for node in left:
            inputs = [one for one in node.all_input_nodes if one in known]
            if label(node) == device and all(one in done for one in inputs):
                stage.append(node)
                done.add(node)
        left = [node for node in left if node not in done]
        found.append(stage)
    return found


def build(
    program: Captured, sides: Sides, moved: Sequence[fx.Node], crossing: Sequence[fx.Node], label: Label,
    lies: Callable[[fx.Node], str],
) -> tuple[Stage, ...]:  # fmt: skip
    """The stages that turn the model's leaves into the crossing values."""
    groups = group(moved, label)
    leaf_nodes = [node for node in program.graph.find_nodes(op="placeholder") if node.name in program.leaves]
    carried: list[fx.Node] = leaf_nodes
    places = {node: program.leaves[node.name] for node in leaf_nodes}
    stages = []
    for number, own in enumerate(groups):
        later = [node for stage in groups[number + 1 :] for node in stage]
        wanted = {one for node in later for one in node.all_input_nodes} | set(crossing)
        last = number == len(groups) - 1
        have = [*carried, *own]
        gives = list(crossing) if last else [node for node in have if node in wanted]
        reads = [node for node in carried if node in gives or any(node in one.all_input_nodes for one in own)]
        free = _free_for(own, sides)
        constants = [node for node in free if node.op == "placeholder"]
        graph, attributes = programs.extract(program.graph, program.module, [*own, *free], [*reads, *constants], gives)
        values = {node.name: program.states[node.name].value.detach().clone() for node in constants}
        _bake(graph, values)
        distinct.quicken(graph)
        compiled = programs.compiled(graph, {**attributes, **values})
        run = Running(
            compiled,
            program.guard if number == 0 else None,
            tuple(places[node] for node in reads),
            tuple(lies(node) for node in reads),
        )
        device: Any = label(own[0]) if label(own[0]) in ("cpu", "cuda") else "cpu"
        stages.append(Stage(f"forward-{number}", run, device))
        carried, places = gives, {node: at for at, node in enumerate(gives)}
    return tuple(stages)


def constants_of(moved: Sequence[fx.Node], sides: Sides) -> list[fx.Node]:
    """Placeholders of constants that the moved nodes read, also by way of free nodes."""
    return [node for node in _free_for(moved, sides) if node.op == "placeholder"]


def _free_for(nodes: Sequence[fx.Node], sides: Sides) -> list[fx.Node]:
    """Free nodes that these need, in the graph's order."""
    wanted: set[fx.Node] = set()
    queue = [one for node in nodes for one in node.all_input_nodes]
    while queue:
        node = queue.pop()
        if node in sides.free and node not in wanted:
            wanted.add(node)
            queue.extend(node.all_input_nodes)
    return [node for node in sides.free_in_order if node in wanted]


def _bake(graph: fx.Graph, values: dict[str, torch.Tensor]) -> None:
    """Placeholders of constants become attributes of the program."""
    for node in graph.find_nodes(op="placeholder"):
        if node.target in values:
            with graph.inserting_after(node):
                attribute = graph.create_node("get_attr", str(node.target))
            node.replace_all_uses_with(attribute)
            graph.erase_node(node)
