"""What operations cost and weigh, for the cut: bytes as seen on the example, seconds by a rule that is one for all.

Every worker of a job must choose the same cut, so its seconds are not measured but estimated, from the number of
elements and the kind of operation. In: prep/statefulness.py, prep/observing.py. Out: `cut.Value`s. Next: prep/cut.py.
"""

import operator
from collections.abc import Callable

import torch
from torch import fx

from springtide.prep.captured import Captured, operation
from springtide.prep.cut import Value
from springtide.prep.observing import Observed, Seen
from springtide.prep.statefulness import Sides

CALL_S = 3e-6  # to call an operation at all
VIEW_S = 1e-6  # one that touches no element
EACH_S = 1e-9  # an element of an elementwise operation
# measured on 1 M rows, one thread: unique with inverse 112 ms, an integer hash of five operations 15 ms
SLOW_S: dict[str, float] = {
    "unique": 1.1e-7, "sort": 8e-8, "argsort": 8e-8, "topk": 4e-8, "bucketize": 1e-8, "searchsorted": 1e-8,
    "nonzero": 4e-9, "index": 4e-9, "gather": 4e-9, "scatter": 6e-9, "remainder": 4e-9, "pow": 1e-8, "log": 5e-9,
    "exp": 5e-9, "sin": 8e-9, "cos": 8e-9, "isin": 1e-7, "histc": 1e-8, "bincount": 4e-9, "cumsum": 3e-9,
}  # fmt: skip


def values(program: Captured, seen: Observed, sides: Sides) -> list[Value]:
    """The program as the cut sees it: leaves, what stays, what may move. Free nodes and checks are left out."""
    found = []
    left_out = sides.free | sides.checks
    bound = {node: [one for one in group if one not in left_out] for group in sides.groups for node in group}
    for node in program.graph.nodes:
        if node in sides.free or node in sides.checks or node.op == "output":
            continue
        is_leaf = node.op == "placeholder" and node.name in program.leaves
        inputs = tuple(
            dict.fromkeys(one.name for one in node.all_input_nodes if one not in sides.free and one not in sides.checks)
        )
        one = seen.nodes[node.name]
        found.append(
            Value(
                name=node.name,
                inputs=inputs,
                bytes=one.bytes,
                seconds=estimate(node, seen),
                place="data" if is_leaf else "trainer" if node in sides.stays else "either",
                view=node not in bound and _is_view(node, one, lambda other: seen.nodes[other.name]),
                bound=tuple(other.name for other in bound.get(node, ()) if other is not node),
            )
        )
    ends = tuple(one.name for one in program.graph.output_node().all_input_nodes if one not in sides.free)
    return [*found, Value(name="output", inputs=tuple(dict.fromkeys(ends)), bytes=0, seconds=0, place="trainer")]


def estimate(node: fx.Node, seen: Observed) -> float:
    """Seconds of one node on one core, by its kind and the elements it reads and makes."""
    if node.op in ("placeholder", "get_attr") or node.target is operator.getitem:
        return 0.0
    one = seen.nodes[node.name]
    inputs = [seen.nodes[given.name] for given in node.all_input_nodes]
    if any(given.storages & one.storages for given in inputs) or not one.storages:
        return VIEW_S
    elements = max([one.elements, *(given.elements for given in inputs)], default=0)
    name = operation(node).strip("_")
    each = next((cost for word, cost in SLOW_S.items() if name.startswith(word)), EACH_S)
    return CALL_S + each * elements


def _is_view(node: fx.Node, one: Seen, of: Callable[[fx.Node], Seen]) -> bool:
    if node.op == "placeholder" or len(node.all_input_nodes) != 1 or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return not one.storages or one.storages == of(node.all_input_nodes[0]).storages
