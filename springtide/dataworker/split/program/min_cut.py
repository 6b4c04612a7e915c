"""Pure. Chooses the operations that move to data workers, so that the trainer saves the most time (a minimum cut).

In: the nodes of a program, with bytes and estimated seconds. The seconds are estimates, not measurements, because every
worker of a job must choose the same cut. If all operations can move without sending more bytes than the raw inputs, all
move except views. Otherwise the cut minimises `seconds that stay + bytes that cross / BYTES_PER_S + VALUE_S for each
value`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CALL_S = 3e-6  # seconds of overhead of a call
VIEW_S = 1e-6  # seconds of a call that reads no element
# estimated seconds of a user's marked function; the estimate is so large that the function always moves, even if its
# result is expensive to send
MARKED_S = 1.0
EACH_S = 1e-9  # seconds per element of an elementwise operation
# Measured for 1 M rows on one thread: `unique` with inverse takes 112 ms, and an integer hash of five operations takes
# 15 ms.
SLOW_S: dict[str, float] = {
    "unique": 1.1e-7,
    "sort": 8e-8,
    "argsort": 8e-8,
    "topk": 4e-8,
    "bucketize": 1e-8,
    "searchsorted": 1e-8,
    "nonzero": 4e-9,
    "index": 4e-9,
    "getitem": 4e-9,
    "gather": 4e-9,
    "scatter": 6e-9,
    "remainder": 4e-9,
    "pow": 1e-8,
    "log": 5e-9,
    "exp": 5e-9,
    "sin": 8e-9,
    "cos": 8e-9,
    "isin": 1e-7,
    "histc": 1e-8,
    "bincount": 4e-9,
    "cumsum": 3e-9,
}


def estimate(operation: str, elements: int, *, view: bool) -> float:
    """Estimate the seconds of a call on one core, from its kind and the largest tensor that it reads or makes."""
    if view:
        return VIEW_S
    per_element_s = next((cost for word, cost in SLOW_S.items() if operation.startswith(word)), EACH_S)
    return CALL_S + per_element_s * elements


# bytes/s that a trainer receives: 10 Gbit/s, which is also about the speed of copies out of shared memory on a busy
# machine
BYTES_PER_S = 1.25e9
# seconds to unpack one more tensor: 29 tensors of 3.5 MB in total take 0.46 ms, of which the copy takes 0.35 ms
VALUE_S = 4e-6
NEVER = 1 << 60  # capacity of an edge that no cut may sever
UNIT_S = 1e-10  # unit of capacities, which are integers


@dataclass(frozen=True, slots=True, kw_only=True)
class CutNode:
    """A node of the program, in execution order."""

    name: str
    inputs: tuple[str, ...]
    bytes: int | None
    """Bytes on the wire; None if the value cannot be sent, such as a tuple of tensors."""
    seconds: float
    place: Literal["data", "trainer", "either"]
    """"data": an input of the model. "trainer": the value depends on state and must stay. "either": the value may
    move."""
    view: bool = False
    """True for a view or a size query, which costs almost nothing where its input is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCut:
    """The values that data workers compute, and the values or inputs that the trainer reads from them."""

    moved: frozenset[str]
    crossing: tuple[str, ...]
    bytes: int
    raw_bytes: int
    why: str


def choose(values: Sequence[CutNode]) -> ProgramCut:
    raw = sum(value.bytes or 0 for value in values if value.place == "data")
    everything = frozenset(value.name for value in values if value.place == "either")
    if all(value.view for value in values if value.place == "either"):
        return _cut(
            values, frozenset(), raw, "nothing can move" if not everything else "only views of inputs could move"
        )
    lean = _cut(values, minimum(values, views_only=True), raw, "")
    unsent = {value.name for value in values if value.bytes is None}
    if lean.bytes <= raw and not unsent.intersection(lean.crossing):
        why = f"all movable operations move: data workers send {lean.bytes} bytes, inputs are {raw}"
        return _cut(values, lean.moved, raw, why)
    least = _cut(values, minimum(values), raw, "")
    stay = len(lean.moved - least.moved)
    if not stay:
        why = f"all movable operations move: by the minimum cut, that is worth {least.bytes} bytes (inputs are {raw})"
    else:
        why = (
            f"minimum cut: moving all operations would send {lean.bytes} bytes (inputs are {raw}); {stay} operations "
            f"stay, because that is faster than sending their results, and {least.bytes} bytes are sent"
        )
    return _cut(values, least.moved, raw, why)


def crossing(values: Sequence[CutNode], moved: frozenset[str]) -> tuple[str, ...]:
    """Return the inputs and moved values that the trainer reads, in order."""
    here = {value.name for value in values if value.place == "data"} | moved
    read = {name for value in values if value.name not in here for name in value.inputs if name in here}
    return tuple(value.name for value in values if value.name in read)


def _cut(values: Sequence[CutNode], moved: frozenset[str], raw: int, why: str) -> ProgramCut:
    names = crossing(values, moved)
    sizes = {value.name: value.bytes or 0 for value in values}
    return ProgramCut(moved=moved, crossing=names, bytes=sum(sizes[name] for name in names), raw_bytes=raw, why=why)


def minimum(values: Sequence[CutNode], *, views_only: bool = False) -> frozenset[str]:
    """Return the names of the values that move in the cheapest cut. `views_only`: everything except views must move."""
    import networkx  # imported here, because the import takes 0.1 s and only a split needs it

    graph = networkx.DiGraph()
    graph.add_nodes_from(("data", "trainer"))
    place = {value.name: value.name if value.place == "either" else value.place for value in values}
    readers: dict[str, list[CutNode]] = {}
    for value in values:
        for name in value.inputs:
            readers.setdefault(name, []).append(value)
    for value in values:
        at = place[value.name]
        if value.place == "either":
            must = views_only and not value.view
            # the cut contains this edge if the value stays in the trainer
            graph.add_edge("data", at, capacity=NEVER if must else stays_cost(value))
            for name in value.inputs:
                if place[name] not in ("data", at):
                    # no cut may sever this edge, because a moved value needs its inputs on the same side
                    graph.add_edge(at, place[name], capacity=NEVER)
        if value.place != "trainer" and value.name in readers:
            sent = ("sent", value.name)
            # the cut contains this edge if the value is sent to the trainer; the cost counts once, for any number of
            # readers
            graph.add_edge(at, sent, capacity=crossing_cost(value))
            for other in readers[value.name]:
                if place[other.name] != "data":
                    graph.add_edge(sent, place[other.name], capacity=NEVER)
    residual = networkx.algorithms.flow.dinitz(graph, "data", "trainer")
    open_edges = ((a, b) for a, b, edge in residual.edges(data=True) if edge["flow"] < edge["capacity"])
    reached = networkx.descendants(networkx.DiGraph([*open_edges, ("data", "data")]), "data")
    return frozenset(value.name for value in values if value.place == "either" and value.name in reached)


def stays_cost(value: CutNode) -> int:
    return max(1, round(value.seconds / UNIT_S))


def crossing_cost(value: CutNode) -> int:
    return NEVER if value.bytes is None else round((value.bytes / BYTES_PER_S + VALUE_S) / UNIT_S)
