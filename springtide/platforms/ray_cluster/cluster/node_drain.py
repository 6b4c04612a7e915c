"""Drains roles from nodes that Ray will remove (autoscaler, spot notice, `ray drain-node`).

In: draining nodes from Ray, and the node of each role from `job.platform`. Out: an `EvictionNotice` to the master,
repeated until the role may end. The master starts another worker at once, or moves a server's slots to its peers; then
the role ends. If the node goes earlier, the job recovers as from any loss. Ray places no new actors on a draining node.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from springtide import errors
from springtide.domain.core.roles import Life
from springtide.rpc.messages import messages

log = logging.getLogger(__name__)

LOOK_S = 1.0
AGAIN_S = 0.5

Ask = Callable[[messages.Request], Awaitable[messages.Reply]]


class NodeDrain:
    """Drains the roles of one job: `placed` gives the node of each role, `end` ends a role."""

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
                    self.look()
                except Exception:  # Ray may be unreachable; the roles continue, and the next poll may succeed
                    log.exception("nodes that Ray takes away cannot be seen now")
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._leaving.values():
                task.cancel()

    def look(self) -> None:
        placed, going = self._placed(), self._announced()
        for life in self._leaving.keys() - placed.keys():
            self._leaving.pop(life).cancel()
        for life, node in placed.items():
            if node in going and life not in self._leaving:
                why = f"Ray takes node {node[:8]} away"
                log.warning("%s is about to go: %s", life, why)
                self._leaving[life] = asyncio.create_task(self._hand_over(life, why))

    async def _hand_over(self, life: Life, why: str) -> None:
        while life in self._placed():
            with contextlib.suppress(errors.SpringtideError, OSError):  # the master may be away
                said = await self._ask(messages.EvictionNotice(life.role, life.incarnation, why))
                if isinstance(said, messages.EvictionReply) and said.free:
                    self._end(life)
                    return
            await asyncio.sleep(AGAIN_S)
