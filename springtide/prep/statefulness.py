"""Algorithm 1, first half: what depends on state, and everything after it, is the trainer's; the rest may move.

State is: parameters, buffers that forward writes, tables, random numbers (data workers would draw others). Downstream
is found by following the graph. In: a captured program and what was observed of it. Next: prep/cut.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from springtide.prep.captured import Captured, is_table
from springtide.prep.observing import Observed


class Refused(Exception):
    """The program cannot be split; the message says why. `node` is where, if it is one.

    `final`: it is so however the program is captured.
    """

    def __init__(self, why: str, node: fx.Node | None = None, *, final: bool = False) -> None:
        super().__init__(why)
        self.node, self.final = node, final


@dataclass(frozen=True, slots=True)
class Sides:
    """What of a program must stay, and what stands on neither side."""

    stays: Mapping[fx.Node, str]
    """Nodes of the trainer, each with what makes it so."""
    free: frozenset[fx.Node]
    """Nodes that depend on no input at all: made on both sides, never sent."""
    checks: frozenset[fx.Node]
    """Nodes that nobody reads, such as assertions on sizes."""
    groups: tuple[tuple[fx.Node, ...], ...] = ()
    """Nodes that may move, but only together: memory that is written after it was made."""

    @property
    def free_in_order(self) -> list[fx.Node]:
        """Free nodes as the graph has them."""
        return sorted(self.free)


def divide(program: Captured, seen: Observed) -> Sides:
    """Follow state through the graph."""
    nodes = list(program.graph.nodes)
    _refuse_written_inputs(program, seen, nodes)
    stays: dict[fx.Node, str] = {}
    for node in nodes:
        why = _source(program, seen, node)
        if why:
            stays[node] = why
    groups = _written_together(program, seen, nodes)
    while True:
        _follow(nodes, stays)
        before = len(stays)
        for group in groups:
            because = next((stays[node] for node in group if node in stays), None)
            if because is not None:
                stays.update({node: because for node in group if node not in stays})
        if len(stays) == before:
            break
    writing = {node for node in nodes if node.op != "output" and seen.nodes[node.name].writes}
    movable = tuple(tuple(group) for group in groups if group[0] not in stays)
    free = _free(program, nodes, stays) - {node for group in movable for node in group}
    return Sides(stays, free, _checks(nodes, stays, writing), movable)


def _source(program: Captured, seen: Observed, node: fx.Node) -> str:
    """What makes a node stateful by itself; empty when nothing does."""
    if node.op == "placeholder" and node.name in program.states:
        state = program.states[node.name]
        if state.kind == "parameter" or state.value.requires_grad:
            return f"parameter {state.path}"
        if node.name in program.mutated or node.name in seen.changed:
            return f"{state.kind} {state.path}, which forward() writes"
        return ""
    if is_table(node):
        return f"table {program.table_paths[int(node.args[0])]}"  # type: ignore[arg-type]
    return "random numbers" if node.op != "placeholder" and seen.nodes[node.name].random else ""


def _follow(nodes: list[fx.Node], stays: dict[fx.Node, str]) -> None:
    """Breadth first in the graph's own order: an input comes before its readers."""
    for node in nodes:
        if node not in stays and node.op != "output":
            why = next((stays[given] for given in node.all_input_nodes if given in stays), None)
            if why is not None:
                stays[node] = why


def _refuse_written_inputs(program: Captured, seen: Observed, nodes: list[fx.Node]) -> None:
    inputs = {
        memory for node in nodes if node.name in program.leaves for memory in seen.nodes[node.name].storages
    }  # fmt: skip
    for node in nodes:
        if node.op != "output" and seen.nodes[node.name].writes & inputs:
            raise Refused(
                "forward() writes into its inputs; work on a copy (.clone()) to let it be split", node, final=True
            )


def _written_together(program: Captured, seen: Observed, nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """For each memory that is written after it was made: what lies in it or reads it before the last write.

    They go together: before and after a write they see different values, which only the order within one program keeps
    apart. After the last write there is one value left, and it may cross.
    """
    made = [node for node in nodes if node.op not in ("placeholder", "output")]
    born: dict[int, fx.Node] = {}
    for node in made:
        for memory in seen.nodes[node.name].storages:
            born.setdefault(memory, node)
    groups = []
    for memory in {memory for node in made for memory in seen.nodes[node.name].writes}:
        writers = [node for node in made if memory in seen.nodes[node.name].writes and born.get(memory) is not node]
        if writers:
            lying = [node for node in made if memory in seen.nodes[node.name].storages]
            readers = [user for node in lying for user in node.users if user.op != "output"]
            last = max(writers)
            groups.append(list(dict.fromkeys(node for node in (*lying, *writers, *readers) if not last < node)))
    return groups


def _free(program: Captured, nodes: list[fx.Node], stays: Mapping[fx.Node, str]) -> frozenset[fx.Node]:
    reached = {node for node in nodes if node.op == "placeholder" and node.name in program.leaves}
    for node in nodes:
        if any(given in reached for given in node.all_input_nodes):
            reached.add(node)
    return frozenset(node for node in nodes if node not in reached and node not in stays and node.op != "output")


def _checks(nodes: list[fx.Node], stays: Mapping[fx.Node, str], writing: set[fx.Node]) -> frozenset[fx.Node]:
    """Nodes from which no output and nothing that stays can be reached."""
    wanted = {node for node in nodes if node.op == "output" or node in writing}
    wanted |= {node for node in nodes if node in stays and not _asserts(node)}
    for node in reversed(nodes):
        if any(user in wanted for user in node.users):
            wanted.add(node)
    return frozenset(node for node in nodes if node not in wanted and node.op != "placeholder")


def _asserts(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and "assert" in target.name()
