"""Pure. Which node of a Ray cluster a data worker goes to, and whether another has become better for it.

In: where a job's roles are, what nodes have left, and how many other jobs use the network of each (`order.noise`). Out:
a node: beside a trainer of the job, else where the network is the quietest; never one without the cores. The rule is
that of `planning.dataworkers.cluster.node_placement`, for data workers that cannot be cut in pieces. Called by:
`platform` when it starts one, `moving` every so often.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from springtide.domain.core.roles import Life, RoleKind

HAIR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Of a cluster, as they are now."""

    free: Mapping[str, float]
    """Cores that nobody has asked for, by the node's id."""
    homes: Collection[str]
    """Nodes with a trainer of the job."""
    noise: Mapping[str, int]
    """Other jobs that use its network: trained there and elsewhere too, or fed from there."""

    def worth(self, node: str) -> tuple[bool, int]:
        """The smaller, the better a place."""
        return node not in self.homes, 0 if node in self.homes else self.noise.get(node, 0)


@dataclass(frozen=True, slots=True)
class DataWorkerMove:
    """A data worker that would be better off elsewhere."""

    life: Life
    node: str
    why: str


def choose(cpu: float, nodes: Nodes) -> str:
    """The best node with so many cores free; empty: none has them."""
    fit = [node for node, free in nodes.free.items() if free >= cpu - HAIR]
    return min(fit, key=lambda node: (*nodes.worth(node), -nodes.free[node], node), default="")


def move(placed: Mapping[Life, tuple[str, float]], nodes: Nodes) -> DataWorkerMove | None:
    """The first data worker for which a better node has room, of those at the worst places; `placed`: node and cores.

    Nobody moves to a place that is as good as its own, so it comes to an end.
    """
    feeding = [(life, *where) for life, where in placed.items() if life.role.kind is RoleKind.DATA_WORKER]
    for life, node, cpu in sorted(feeding, key=lambda one: (nodes.worth(one[1]), one[0]), reverse=True):
        best = choose(cpu, nodes)
        if best and nodes.worth(best) < nodes.worth(node):
            where = "beside a trainer" if best in nodes.homes else "where fewer jobs use the network"
            return DataWorkerMove(life, best, f"there is room for it {where}, on node {best[:8]}")
    return None
