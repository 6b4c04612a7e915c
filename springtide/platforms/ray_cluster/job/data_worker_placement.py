"""Data workers that would be better off on another node of a Ray cluster move there, one after the other.

In: where roles are, from `platform`, and what Ray says of its nodes. Out: `Leaving` to the master for a data worker
that `seating` has a better node for: another joins, which `platform` puts there, and the first leaves once that feeds.
Nobody is started again, and nothing that was made is lost. A node that was tried in vain is tried again when it has
more cores left than it had.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from springtide import errors
from springtide.domain.core.roles import Life, RoleKind
from springtide.platforms.ray_cluster.cluster.node_drain import Ask
from springtide.rpc.messages import messages

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
        return node not in self.homes, 0 if node in self.homes else self.noise.get(node, 0)


@dataclass(frozen=True, slots=True)
class DataWorkerMove:
    """A data worker that would be better off elsewhere."""

    life: Life
    node: str
    why: str


def choose(cpu: float, nodes: Nodes) -> str:
    """Return the best node with enough free cores; empty if none has them."""
    fit = [node for node, free in nodes.free.items() if free >= cpu - HAIR]
    return min(fit, key=lambda node: (*nodes.worth(node), -nodes.free[node], node), default="")


def best_move(placed: Mapping[Life, tuple[str, float]], nodes: Nodes) -> DataWorkerMove | None:
    """Return the worst-placed data worker for which a strictly better node has room. `placed`: node and cores."""
    feeding = [(life, *where) for life, where in placed.items() if life.role.kind is RoleKind.DATA_WORKER]
    for life, node, cpu in sorted(feeding, key=lambda one: (nodes.worth(one[1]), one[0]), reverse=True):
        best = choose(cpu, nodes)
        if best and nodes.worth(best) < nodes.worth(node):
            where = "beside a trainer" if best in nodes.homes else "where fewer jobs use the network"
            return DataWorkerMove(life, best, f"there is room for it {where}, on node {best[:8]}")
    return None


log = logging.getLogger(__name__)

LOOK_S = 30.0  # a move costs the start of a process: what changes more often is no reason for it
AGAIN_S = 1.0
PATIENCE_S = 300.0  # for the other to feed and the first to leave; then the next is looked at

Placed = Mapping[Life, tuple[str, float]]


class DataWorkerMover:
    """Of one job's data workers: `placed` says where each role is and the cores that it asked for."""

    def __init__(self, placed: Callable[[], Placed], nodes: Callable[[], Nodes], ask: Ask) -> None:
        self._placed, self._nodes, self._ask = placed, nodes, ask
        self._tried: dict[str, float] = {}
        """Nodes that were asked for in vain, and the cores they had free then."""

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:  # Ray may be away: data workers feed where they are
                log.exception("whether data workers have better places cannot be seen now")

    async def look(self) -> None:
        placed = self._placed()
        if not any(life.role.kind is RoleKind.DATA_WORKER for life in placed):
            return
        nodes = self._nodes()
        free = {node: cpu for node, cpu in nodes.free.items() if cpu > self._tried.get(node, -1.0)}
        if (found := best_move(placed, replace(nodes, free=free))) is None:
            return
        log.info("%s moves: %s", found.life, found.why)
        self._tried[found.node] = nodes.free[found.node]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._until_gone(found)
        came = [life for life, (node, _) in self._placed().items() if node == found.node and life not in placed]
        if any(life.role.kind is RoleKind.DATA_WORKER for life in came):
            del self._tried[found.node]

    async def _until_gone(self, found: DataWorkerMove) -> None:
        told = False
        while found.life in self._placed():
            if not told:
                with contextlib.suppress(errors.SpringtideError, OSError):  # the master may be away
                    said = await self._ask(messages.EvictionNotice(found.life.role, found.life.incarnation, found.why))
                    if isinstance(said, messages.EvictionReply) and said.free:
                        return  # nobody is to come in its place
                    told = True
            await asyncio.sleep(AGAIN_S)
