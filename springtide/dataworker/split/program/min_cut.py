"""Pure. Choose the operations that move to data workers, so that the trainer saves the most time (a minimum cut).

In: the nodes of a program, with bytes and estimated seconds. Seconds are not measured, because every worker of a job
must choose the same cut. If everything may move without sending more bytes than the raw inputs, everything moves except
views. Otherwise the cut minimises `seconds that stay + bytes that cross / BYTES_PER_S + VALUE_S for each value`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CALL_S = 3e-6  # overhead of a call
VIEW_S = 1e-6  # a call that reads no element
MARKED_S = 1.0  # a marked function of the user: this large estimate makes it move, whatever its result costs to send
EACH_S = 1e-9  # per element of an elementwise operation
# Measured on 1 M rows with one thread: unique with inverse takes 112 ms, an integer hash of five operations 15 ms.
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
    each = next((cost for word, cost in SLOW_S.items() if operation.startswith(word)), EACH_S)
    return CALL_S + each * elements


BYTES_PER_S = 1.25e9  # receive rate of a trainer: 10 Gbit/s, about a copy out of shared memory next to busy cores
VALUE_S = 4e-6  # to unpack one more tensor: 29 tensors of 3.5 MB in total take 0.46 ms, of which the copy takes 0.35 ms
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
    """"data": an input of the model. "trainer": depends on state. "either": may move."""
    view: bool = False
    """True for a view or a size query, which costs almost nothing on the side of its input."""
    bound: tuple[str, ...] = ()
    """Values that must be computed on the same side as this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCut:
    """The values that data workers compute, and the values or inputs that the trainer reads from them."""

    moved: frozenset[str]
    crossing: tuple[str, ...]
    bytes: int
    raw_bytes: int
    why: str


def choose(values: Sequence[CutNode]) -> ProgramCut:
    """Choose the cut, and give the reason."""
    raw = sum(value.bytes or 0 for value in values if value.place == "data")
    everything = frozenset(value.name for value in values if value.place == "either")
    if all(value.view for value in values if value.place == "either"):
        return _cut(
            values, frozenset(), raw, "nothing can move" if not everything else "only views of inputs could move"
        )
    lean = _cut(values, minimum(values, views_only=True), raw, "")
    unsent = {value.name for value in values if value.bytes is None}
    if lean.bytes <= raw and not unsent.intersection(lean.crossing):
        why = f"everything that may move does: {lean.bytes} bytes cross, inputs are {raw}"
        return _cut(values, lean.moved, raw, why)
    least = _cut(values, minimum(values), raw, "")
    stay = len(lean.moved - least.moved)
    if not stay:
        why = f"everything that may move does: worth its {least.bytes} bytes (inputs are {raw}) by the minimum cut"
    else:
        why = (
            f"minimum cut: moving everything would send {lean.bytes} bytes (inputs are {raw}); {stay} operations stay, "
            f"which take less time than sending what they make, and {least.bytes} bytes cross"
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
    flow = _Flow(2)
    source, sink = 0, 1
    place: dict[str, int] = {}
    for value in values:
        place[value.name] = source if value.place == "data" else sink if value.place == "trainer" else flow.node()
    users = {name for value in values for name in value.inputs}
    for value in values:
        at = place[value.name]
        if value.place == "either":
            must = views_only and not value.view
            flow.edge(source, at, NEVER if must else stays_cost(value))  # severed when the value stays
            for name in (*value.inputs, *value.bound):
                if place[name] not in (source, at):
                    flow.edge(at, place[name], NEVER)  # a moved value needs its inputs on the same side
        if value.place != "trainer" and value.name in users:
            sent = flow.node()
            flow.edge(at, sent, crossing_cost(value))  # severed when the value crosses, once for all its readers
            for other in values:
                if value.name in other.inputs and place[other.name] != source:
                    flow.edge(sent, place[other.name], NEVER)
    flow.fill(source, sink)
    reached = flow.reached(source)
    return frozenset(value.name for value in values if value.place == "either" and place[value.name] in reached)


def stays_cost(value: CutNode) -> int:
    """Return the cost of computing a value in the trainer."""
    return max(1, round(value.seconds / UNIT_S))


def crossing_cost(value: CutNode) -> int:
    """Return the cost of sending a value to the trainer."""
    return NEVER if value.bytes is None else round((value.bytes / BYTES_PER_S + VALUE_S) / UNIT_S)


class _Flow:
    """Maximum flow with integer capacities (Dinic's algorithm)."""

    def __init__(self, nodes: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        self._to: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        self._out.append([])
        return len(self._out) - 1

    def edge(self, begin: int, end: int, room: int) -> None:
        for one, other, free in ((begin, end, room), (end, begin, 0)):
            self._out[one].append(len(self._to))
            self._to.append(other)
            self._room.append(free)

    def reached(self, begin: int) -> dict[int, int]:
        """Return the nodes with residual capacity from `begin`, each with its distance in edges."""
        away = {begin: 0}
        queue = deque([begin])
        while queue:
            node = queue.popleft()
            for edge in self._out[node]:
                if self._room[edge] > 0 and self._to[edge] not in away:
                    away[self._to[edge]] = away[node] + 1
                    queue.append(self._to[edge])
        return away

    def fill(self, begin: int, end: int) -> int:
        """Saturate the network, and return the flow."""
        total = 0
        while end in (away := self.reached(begin)):
            tried = [0] * len(self._out)
            while pushed := self._push(begin, end, away, tried):
                total += pushed
        return total

    def _push(self, begin: int, end: int, away: dict[int, int], tried: list[int]) -> int:
        """Push flow along one path of increasing distance; return 0 if no path is left."""
        way: list[int] = []
        node = begin
        while node != end:
            edges = self._out[node]
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if self._room[edge] > 0 and away.get(self._to[edge], -1) == away[node] + 1:
                    break
                tried[node] += 1
            if tried[node] == len(edges):
                if not way:
                    return 0
                edge = way.pop()
                node = self._to[edge ^ 1]
                tried[node] += 1
                continue
            way.append(edges[tried[node]])
            node = self._to[way[-1]]
        room = min(self._room[edge] for edge in way)
        for edge in way:
            self._room[edge] -= room
            self._room[edge ^ 1] += room
        return room
