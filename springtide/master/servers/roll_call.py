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

HOLD_S = 1.0  # longest time to hold an answer, so that a stopped server learns at once that all have stopped


class ServerRollCall:
    """Roll calls of one master."""

    def __init__(self, record: JobRecord, term: int, changed: waiters.ChangeSignal) -> None:
        self._record, self._changed = record, changed
        self._call = RollCall(term * TERM)
        self._called = False
        self._away: dict[int, int] = {}
        """Known lost servers, each with the incarnation that is expected."""
        self.moves = term > 1
        """True if slots may be in transfer, so that servers must be asked. After a takeover this is unknown, and
        assumed."""

    @property
    def number(self) -> int:
        """Return the number that servers must answer to; 0 if no call was ever made."""
        return self._call.number if self._called else 0

    @property
    def open(self) -> bool:
        """Return True while the owners of slots are uncertain."""
        self._notice()
        return self._call.open

    def living(self) -> set[int]:
        """Return the ranks of serving servers."""
        servers = self._record.state.of_kind(RoleKind.SERVER)
        return {node.role.rank for node in servers if node.address and node.state in ALIVE}

    def answered(self, role: Role, holding: messages.SlotHoldings, owned: frozenset[int]) -> None:
        """Record a server's answer."""
        self._notice()
        if self._call.answer(role.rank, holding.call, ServerAnswer(owned, holding.doubts), self.living()):
            self._changed.turn()

    async def gone_on(self, holding: messages.SlotHoldings | None) -> None:
        """Hold the heartbeat of a server that has answered, until the next number or a timeout."""
        number = self.number
        if holding is None or not self.open or holding.call < number:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._changed.until(lambda: self.number != number or not self.open)

    def known(self) -> bool:
        """Return True if all servers have answered, so that a lost server can be told its slots."""
        return not self.open or self._call.complete(self.living())

    def settle(self, heir: Role) -> dict[int, int]:
        """Return the slots whose owner differs from the record. Slots without an owner go to `heir`. All must have
        answered.
        """
        if not self.open:
            return {}
        found = self._call.changes(self._record.owners, self.living(), heir.rank)
        self._call.close()
        return found

    def _notice(self) -> None:
        """Begin a call if a server was lost since the last check."""
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
