"""Pure. Choose the cut: which of the movable operations move, so that the trainer saves most.

In: `CutNode`s, the nodes of a program with bytes and estimated seconds. Seconds are estimated from elements and the
kind of operation, not measured, because every worker of a job must choose the same cut. If moving everything sends no
more than the raw inputs, everything moves but views, which cost nothing. Else the cut minimises `seconds that stay +
bytes that cross / BYTES_PER_S + VALUE_S for each value`. Both are exact minimum cuts (closures with precedence, maximum
flow). Next: moved_program.py makes programs of it.

Own Dinic rather than scipy.sparse.csgraph.maximum_flow: its capacities are 32-bit, ours are bytes and nanoseconds.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CALL_S = 3e-6  # to call an operation at all
VIEW_S = 1e-6  # one that touches no element
MARKED_S = 1.0  # a function of the user's own: it moves, whatever it sends
EACH_S = 1e-9  # an element of an elementwise operation
# measured on 1 M rows, one thread: unique with inverse 112 ms, an integer hash of five operations 15 ms
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
    """Seconds of one call on one core, by its kind and the most elements that it reads or makes."""
    if view:
        return VIEW_S
    each = next((cost for word, cost in SLOW_S.items() if operation.startswith(word)), EACH_S)
    return CALL_S + each * elements


BYTES_PER_S = 1.25e9  # what a trainer takes in: 10 Gbit/s, about a copy out of shared memory beside busy cores
VALUE_S = 4e-6  # to take one more tensor out of a message: 29 of them, 3.5 MB, in 0.46 ms, of which 0.35 are the copy
NEVER = 1 << 60  # capacity of an edge that no cut may sever
UNIT_S = 1e-10  # capacities are whole numbers of this


@dataclass(frozen=True, slots=True, kw_only=True)
class CutNode:
    """One node of the program, in the order in which it runs."""

    name: str
    inputs: tuple[str, ...]
    bytes: int | None
    """None: it cannot travel, such as a tuple of tensors."""
    seconds: float
    place: Literal["data", "trainer", "either"]
    """"data": an input of the model. "trainer": depends on state. "either": may move."""
    view: bool = False
    """Looks at the memory of its input, or at its size: costs next to nothing where that is."""
    bound: tuple[str, ...] = ()
    """Values that must be made on the same side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCut:
    """Which values data workers make, and which of them (or of the inputs) the trainer reads."""

    moved: frozenset[str]
    crossing: tuple[str, ...]
    bytes: int
    raw_bytes: int
    why: str


def choose(values: Sequence[CutNode]) -> ProgramCut:
    """The cut, with its reason."""
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
    """Inputs and moved values that the trainer reads, in order."""
    here = {value.name for value in values if value.place == "data"} | moved
    read = {name for value in values if value.name not in here for name in value.inputs if name in here}
    return tuple(value.name for value in values if value.name in read)


def _cut(values: Sequence[CutNode], moved: frozenset[str], raw: int, why: str) -> ProgramCut:
    names = crossing(values, moved)
    sizes = {value.name: value.bytes or 0 for value in values}
    return ProgramCut(moved=moved, crossing=names, bytes=sum(sizes[name] for name in names), raw_bytes=raw, why=why)


def minimum(values: Sequence[CutNode], *, views_only: bool = False) -> frozenset[str]:
    """Names of the values that move in the cut of least cost. `views_only`: all but views must move."""
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
            flow.edge(source, at, NEVER if must else stays_cost(value))  # severed when it stays
            for name in (*value.inputs, *value.bound):
                if place[name] not in (source, at):
                    flow.edge(at, place[name], NEVER)  # what moves needs its inputs there
        if value.place != "trainer" and value.name in users:
            sent = flow.node()
            flow.edge(at, sent, crossing_cost(value))  # severed when it crosses, once for all its readers
            for other in values:
                if value.name in other.inputs and place[other.name] != source:
                    flow.edge(sent, place[other.name], NEVER)
    flow.fill(source, sink)
    reached = flow.reached(source)
    return frozenset(value.name for value in values if value.place == "either" and place[value.name] in reached)


def stays_cost(value: CutNode) -> int:
    """What it costs the trainer to make a value itself."""
    return max(1, round(value.seconds / UNIT_S))


def crossing_cost(value: CutNode) -> int:
    """What it costs the trainer to be sent a value."""
    return NEVER if value.bytes is None else round((value.bytes / BYTES_PER_S + VALUE_S) / UNIT_S)


class _Flow:
    """Maximum flow over whole numbers (Dinic): shortest paths first, several at a time."""

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
        """Nodes that more could flow to, and how many edges away they are."""
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
        """Send as much as there is room for."""
        total = 0
        while end in (away := self.reached(begin)):
            tried = [0] * len(self._out)
            while pushed := self._push(begin, end, away, tried):
                total += pushed
        return total

    def _push(self, begin: int, end: int, away: dict[int, int], tried: list[int]) -> int:
        """One way from begin to end along edges that lead further, or 0."""
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
