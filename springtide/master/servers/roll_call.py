"""Runs the roll call after a server loss: the living servers report their slots before the lost server returns.

In: heartbeats, and the nodes of the record. Out: the number of the call, for heartbeat replies, and finally the owner
of every slot. `job.recovery.rollcall` has the rules. Nothing is journaled: the next master starts a new call with a
higher number.
"""

import asyncio
import contextlib

from springtide.domain.core.roles import Role, RoleKind
from springtide.job.core.nodes import ALIVE, NodeState
from springtide.job.recovery.rollcall import TERM, RollCall, ServerAnswer
from springtide.master.core import waiters
from springtide.master.core.record import JobRecord
from springtide.rpc.messages import messages

HOLD_S = 1.0  # an answer is held so long, so that whoever has stopped hears at once that all have


class ServerRollCall:
    """Roll calls of one master."""

    def __init__(self, record: JobRecord, term: int, changed: waiters.ChangeSignal) -> None:
        self._record, self._changed = record, changed
        self._call = RollCall(term * TERM)
        self._called = False
        self._away: dict[int, int] = {}
        """Lost servers that are known, with the life that is awaited."""
        self.moves = term > 1
        """Whether slots may be under way at all: if not, nobody has to be asked. Of a master before nobody knows."""

    @property
    def number(self) -> int:
        """What servers are to answer to; 0: nobody was called yet."""
        return self._call.number if self._called else 0

    @property
    def open(self) -> bool:
        """Whether it is not known just now whose every slot is."""
        self._notice()
        return self._call.open

    def living(self) -> set[int]:
        """Servers that serve."""
        servers = self._record.state.of_kind(RoleKind.SERVER)
        return {node.role.rank for node in servers if node.address and node.state in ALIVE}

    def answered(self, role: Role, holding: messages.SlotHoldings, owned: frozenset[int]) -> None:
        """A server's word on what it has."""
        self._notice()
        if self._call.answer(role.rank, holding.call, ServerAnswer(owned, holding.doubts), self.living()):
            self._changed.turn()

    async def gone_on(self, holding: messages.SlotHoldings | None) -> None:
        """Wait a while for the next number, for one that has answered to this one."""
        number = self.number
        if holding is None or not self.open or holding.call < number:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._changed.until(lambda: self.number != number or not self.open)

    def known(self) -> bool:
        """Whether all have answered, so that a lost server can be told which slots are its own."""
        return not self.open or self._call.complete(self.living())

    def settle(self, heir: Role) -> dict[int, int]:
        """Slots that are another's than the record says; those that nobody has go to `heir`. All have answered."""
        if not self.open:
            return {}
        found = self._call.changes(self._record.owners, self.living(), heir.rank)
        self._call.close()
        return found

    def _notice(self) -> None:
        """A server that was lost since the last look begins a call."""
        away = {
            node.role.rank: node.incarnation
            for node in self._record.state.of_kind(RoleKind.SERVER)
            if node.incarnation and not node.address and not node.coming and node.state is not NodeState.GONE
        }
        fresh = any(self._away.get(rank) != life for rank, life in away.items())
        self._away = away
        if fresh and self.moves and self._record.owners:
            self._called = True
            self._call.begin()
            self._changed.turn()
