"""Coordinates workers through the master: barriers, shared values, and tasks to do once.

In: requests of workers, from `master.dispatcher`. Out: replies; some wait until other workers arrive. State that must
survive is in the record and journaled by the `MasterContext`.
"""

from springtide.domain.data.leases import LeaseHolder
from springtide.master.core import journal_entries, waiters
from springtide.master.core.context import MasterContext
from springtide.rpc.messages import messages

Agreement = (
    messages.BarrierRequest | messages.ShareRequest | messages.ValueRequest | messages.ClaimRequest | messages.ClaimDone
)


class SharedValues:
    """Barriers and shared values of one job."""

    def __init__(self, context: MasterContext) -> None:
        self._record, self._changed, self._kept = context.record, context.changed, context.journaled
        self._arrivals = waiters.BarrierArrivals(context.state.spec.workers)

    async def answer(self, holder: LeaseHolder, request: Agreement) -> messages.Reply:
        """Answer a request of a worker that is not fenced."""
        record = self._record
        match request:
            case messages.BarrierRequest():
                await self._barrier(holder.rank, request.name, request.turn)
            case messages.ShareRequest():
                with self._kept(journal_entries.ShareEntry(request.key, request.value)):
                    record.share(request.key, request.value)
                self._changed.turn()
            case messages.ValueRequest():
                return await self.look_up(request)
            case messages.ClaimRequest():
                return await self._claim(holder, request.key)
            case messages.ClaimDone():
                with self._kept(journal_entries.SettleEntry(request.key, holder)):
                    record.settle(request.key, holder)
                self._changed.turn()
        return messages.Ok()

    async def look_up(self, request: messages.ValueRequest) -> messages.ValueFound:
        """Wait until a value is shared, and return it."""
        await self._changed.until(lambda: request.key in self._record.shared)
        return messages.ValueFound(self._record.shared[request.key])

    async def _barrier(self, rank: int, name: str, turn: int) -> None:
        gates = self._record.gates
        if gates.get(name, 0) < turn and self._arrivals.complete(name, turn, rank):
            with self._kept(journal_entries.BarrierEntry(name, turn)):
                self._record.open_gate(name, turn)
            self._changed.turn()
        await self._changed.until(lambda: gates.get(name, 0) >= turn)

    async def _claim(self, holder: LeaseHolder, key: str) -> messages.ClaimReply:
        mine: bool | None = None

        def decided() -> bool:
            nonlocal mine
            with self._kept(journal_entries.ClaimEntry(key, holder)):
                mine = self._record.claim(key, holder)
            return mine is not None

        await self._changed.until(decided)
        assert mine is not None
        return messages.ClaimReply(mine)
