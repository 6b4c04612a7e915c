"""Drains roles from nodes that Ray will remove, and moves data workers to better nodes, one at a time.

Both actions send an `EvictionNotice` to the master. A replacement joins, or a server's slots move, and then the old
role ends. If a node is removed before its roles have drained, the job recovers as from any other loss.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from springtide import errors
from springtide.domain.core.roles import Life, RoleKind
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import Reply, Request

DRAIN_POLL_S = 1.0
NOTICE_S = 0.5

Ask = Callable[[Request], Awaitable[Reply]]

HAIR = 1e-6
log = logging.getLogger(__name__)
# seconds between two checks; moving a data worker costs the start of a process, so brief changes of load are ignored
LOOK_S = 30.0
AGAIN_S = 1.0
# most seconds to wait, before the next move, until the replacement serves and the old data worker has left
PATIENCE_S = 300.0
Placed = Mapping[Life, tuple[str, float]]


class NodeDrain:
    """Drains the roles of one job. `placed` has the node of each role, and `end` ends a role."""

    def __init__(
        self,
        announced: Callable[[], Mapping[str, int]],
        placed: Callable[[], Mapping[Life, str]],
        ask: Ask,
        end: Callable[[Life], None],
    ) -> None:
        self._announced, self._placed, self._ask, self._end = announced, placed, ask, end
        self._leaving: dict[Life, asyncio.Task[None]] = {}

    async def keep(self) -> None:
        try:
            while True:
                try:
                    self.poll()
                except Exception:  # Ray may be unreachable; the roles continue, and the next check may succeed
                    log.exception("cannot list the nodes that Ray removes")
                await asyncio.sleep(DRAIN_POLL_S)
        finally:
            for task in self._leaving.values():
                task.cancel()

    def poll(self) -> None:
        placed, going = self._placed(), self._announced()
        for life in self._leaving.keys() - placed.keys():
            self._leaving.pop(life).cancel()
        for life, node in placed.items():
            if node in going and life not in self._leaving:
                why = f"Ray takes node {node[:8]} away"
                log.warning("%s will be evicted: %s", life, why)
                self._leaving[life] = asyncio.create_task(self._hand_over(life, why))

    async def _hand_over(self, life: Life, why: str) -> None:
        while life in self._placed():
            with contextlib.suppress(errors.SpringtideError, OSError):  # the master may be unreachable
                reply = await self._ask(messages.EvictionNotice(life.role, life.incarnation, why))
                if isinstance(reply, messages.EvictionReply) and reply.free:
                    self._end(life)
                    return
            await asyncio.sleep(NOTICE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Current state of the nodes of a cluster."""

    free: Mapping[str, float]
    """Cores that no actor has requested, by node id."""
    homes: Collection[str]
    """Nodes with a trainer of the job."""
    noise: Mapping[str, int]
    """Number of other jobs of which training or data workers use the node's network."""

    def worth(self, node: str) -> tuple[bool, int]:
        return node not in self.homes, 0 if node in self.homes else self.noise.get(node, 0)


@dataclass(frozen=True, slots=True)
class DataWorkerMove:
    """A data worker for which there is a better node."""

    life: Life
    node: str
    why: str


def choose(cpu: float, nodes: Nodes) -> str:
    fit = [node for node, free in nodes.free.items() if free >= cpu - HAIR]
    return min(fit, key=lambda node: (*nodes.worth(node), -nodes.free[node], node), default="")


def best_move(placed: Mapping[Life, tuple[str, float]], nodes: Nodes) -> DataWorkerMove | None:
    """Return the worst-placed data worker for which a strictly better node has room. `placed` has the node and the
    cores of each data worker."""
    feeding = [(life, *where) for life, where in placed.items() if life.role.kind is RoleKind.DATA_WORKER]
    for life, node, cpu in sorted(feeding, key=lambda entry: (nodes.worth(entry[1]), entry[0]), reverse=True):
        best = choose(cpu, nodes)
        if best and nodes.worth(best) < nodes.worth(node):
            where = "beside a trainer" if best in nodes.homes else "where fewer jobs use the network"
            return DataWorkerMove(life, best, f"there is room for this data worker {where}, on node {best[:8]}")
    return None


class DataWorkerMover:
    """Moves the data workers of one job. `placed` has the node and the requested cores of each role."""

    def __init__(self, placed: Callable[[], Placed], nodes: Callable[[], Nodes], ask: Ask) -> None:
        self._placed, self._nodes, self._ask = placed, nodes, ask
        self._tried: dict[str, float] = {}
        """Free cores of each node when a move to it last failed."""

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.poll()
            except Exception:  # Ray may be unreachable; the data workers continue to serve from their current nodes
                log.exception("cannot look for better nodes for data workers")

    async def poll(self) -> None:
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
        logged = False
        while found.life in self._placed():
            if not logged:
                with contextlib.suppress(errors.SpringtideError, OSError):  # the master may be unreachable
                    reply = await self._ask(messages.EvictionNotice(found.life.role, found.life.incarnation, found.why))
                    if isinstance(reply, messages.EvictionReply) and reply.free:
                        return  # the master wants no replacement
                    logged = True
            await asyncio.sleep(AGAIN_S)
