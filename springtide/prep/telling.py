"""From a split to its explanation: operations grouped by the user's lines, reasons, bytes, seconds.

In: everything prep/split.py found out. Out: prep/explain.py's `Explanation`.
"""

from collections.abc import Sequence

from torch import fx

from springtide.prep import captured
from springtide.prep.captured import Captured, State, operation
from springtide.prep.cut import Cut
from springtide.prep.explain import Explanation, Group, Refusal
from springtide.prep.observing import Observed
from springtide.prep.stage import Stage
from springtide.prep.statefulness import Refused, Sides

SILENT = ("getitem", "sym_size", "get_attr")
CHEAPER = "its result, which is cheaper to make than to send"


def tell(
    program: Captured,
    seen: Observed,
    sides: Sides,
    cut: Cut,
    moved: Sequence[fx.Node],
    stages: Sequence[Stage],
    forward_s: float,
    shipped: Sequence[State],
) -> Explanation:
    """What is to be said of a program that was divided."""
    gone = set(moved)
    stay = [
        node
        for node in program.graph.nodes
        if node.op not in ("placeholder", "output", "get_attr")
        and node not in gone
        and node not in sides.free
        and node not in sides.checks
    ]
    return Explanation(
        moved=_by_line(program, moved, seen, {}),
        stayed=_by_line(program, stay, seen, {node: sides.stays.get(node, CHEAPER) for node in stay}),
        rung=program.rung,
        why=cut.why,
        stages=tuple(f"{stage.name} on {stage.device}" for stage in stages),
        raw_bytes=cut.raw_bytes,
        cut_bytes=cut.bytes,
        moved_s=sum(seen.nodes[node.name].seconds for node in moved),
        forward_s=forward_s,
        constants=tuple(state.path for state in shipped if state.owner is not None),
    )


def _names(node: fx.Node, program: Captured) -> list[str]:
    """A node's operation, or those of the graph inside it (what stands under torch.no_grad(), for one)."""
    inner = [getattr(program.module, str(one.target), None) for one in node.all_input_nodes if one.op == "get_attr"]
    graphs = [one.graph for one in inner if isinstance(one, fx.GraphModule)]
    if not graphs:
        return [operation(node)]
    return [operation(one) for graph in graphs for one in graph.nodes if one.op == "call_function"]


def refused(rung: str, error: Refused) -> Refusal:
    """The words for a program that was captured and cannot be divided."""
    line, text = ("", "") if error.node is None else captured.where(error.node)
    return Refusal(rung=rung, why=str(error), line=line, text=text)


def _by_line(program: Captured, nodes: Sequence[fx.Node], seen: Observed, why: dict[fx.Node, str]) -> tuple[Group, ...]:
    found: dict[tuple[str, str, str], list[fx.Node]] = {}
    for node in nodes:
        found.setdefault((*captured.where(node), why.get(node, "")), []).append(node)
    groups = []
    for (line, text, reason), own in found.items():
        names = tuple(name for node in own for name in _names(node, program) if not name.startswith(SILENT))
        seconds = sum(seen.nodes[node.name].seconds for node in own)
        if names:
            groups.append(Group(line=line, text=text, operations=names, why=reason, seconds=seconds))
    return tuple(groups)
