"""What workers agree on among themselves through the master: barriers, shared values, things to be done once.

In: requests of workers from `master.dispatcher`. Out: replies, some of them after others have come. What must survive
is in the record, and journaled by the desk's `kept`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from springtide.domain.data.leases import LeaseHolder
from springtide.master.core import journal_entries, waiters
from springtide.master.core.record import Record
from springtide.rpc.messages import messages

Agreement = (
    messages.BarrierRequest | messages.Share | messages.Lookup | messages.Claim | messages.Settle
)  # fmt: skip


class Agreeing:
    """One job's barriers and shared values."""

    def __init__(
        self,
        record: Record,
        changed: waiters.Turnstile,
        *,
        kept: Callable[[journal_entries.AnyEntry | None], AbstractContextManager[None]],
    ) -> None:
        self._record, self._changed, self._kept = record, changed, kept
        self._arrivals = waiters.Arrivals(record.state.spec.workers)

    async def answer(self, holder: LeaseHolder, request: Agreement) -> messages.Reply:
        """One request of a worker that counts."""
        record = self._record
        match request:
            case messages.BarrierRequest():
                await self._barrier(holder.rank, request.name, request.turn)
            case messages.Share():
                with self._kept(journal_entries.Share(request.key, request.value)):
                    record.share(request.key, request.value)
                self._changed.turn()
            case messages.Lookup():
                return await self.look_up(request)
            case messages.Claim():
                return await self._claim(holder, request.key)
            case messages.Settle():
                with self._kept(journal_entries.Settle(request.key, holder)):
                    record.settle(request.key, holder)
                self._changed.turn()
        return messages.Ok()

    async def look_up(self, request: messages.Lookup) -> messages.Found:
        """A value, once it is shared."""
        await self._changed.until(lambda: request.key in self._record.shared)
        return messages.Found(self._record.shared[request.key])

    async def _barrier(self, rank: int, name: str, turn: int) -> None:
        gates = self._record.gates
        if gates.get(name, 0) < turn and self._arrivals.complete(name, turn, rank):
            with self._kept(journal_entries.Open(name, turn)):
                self._record.open_gate(name, turn)
            self._changed.turn()
        await self._changed.until(lambda: gates.get(name, 0) >= turn)

    async def _claim(self, holder: LeaseHolder, key: str) -> messages.Claimed:
        mine: bool | None = None

        def decided() -> bool:
            nonlocal mine
            with self._kept(journal_entries.Claim(key, holder)):
                mine = self._record.claim(key, holder)
            return mine is not None

        await self._changed.until(decided)
        assert mine is not None
        return messages.Claimed(mine)
