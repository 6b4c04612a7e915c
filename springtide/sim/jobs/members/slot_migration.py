"""Slots that a virtual server hands over, one after the other, as `server.migration` and cpp/migrate/handover.h do.

In: goals of the master. Out: slots at their new owners, `SlotsMoved`, answers to roll calls. A slot is copied while it
is served, then closed; what is left of it goes to the target, which opens it and says so. If that word does not come,
the slot is in doubt: the source may open it again only once the master knows that the target does not have it.
"""

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

from springtide import errors
from springtide.rpc.messages import messages
from springtide.server.migration import overtaken

if TYPE_CHECKING:
    from springtide.sim.jobs.members.server import VirtualServer

CHUNK_SLOTS = 8  # handed over between two words to the master
NAMES = itertools.count(1)  # of gifts
AGAIN_S = 0.5  # after a target that would not have them, or could not be reached


class SlotHandover:
    """The hand-over of one server life."""

    def __init__(self, server: "VirtualServer") -> None:
        self._server = server
        self._goal: messages.SlotGoal | None = None
        self._news = asyncio.Event()
        self.call = 0
        self.turn = 0
        """Raised by every call: what was sent before it, to here, comes too late."""
        self.doubts: dict[int, int] = {}
        """Slots that are closed for a server whose answer never came, and which server that is."""
        self.under_way: int | None = None
        """The slot that is closed here, and not open there yet."""
        self.given: dict[int, tuple[int, str]] = {}
        """Slots that went to others, for whoever asks here."""
        self.leaves = False
        """It takes no more slots."""
        self.settled: dict[int, bool] = {}
        """Transfers offered by others, by id, and whether they were accepted (cpp/server/requests/transfer_log.h)."""
        self._gifts: dict[int, int] = {}
        """By slot: the name of the last gift of it. One in doubt is offered again by the same name."""
        self.moved = 0

    @property
    def holding(self) -> tuple[int, dict[int, int], bool]:
        """The newest call that was heard while nothing was being handed over, what is in doubt, whether it leaves."""
        return self.call, dict(self.doubts), self.leaves

    def keeps(self, slot: int) -> bool:
        """Whether it has a copy of a slot that is closed here for another server."""
        return slot == self.under_way or slot in self.doubts

    def heed(self, goal: messages.SlotGoal) -> None:
        if self._goal is not None and overtaken(goal, self._goal):
            return
        self.leaves = self.leaves or goal.leave
        if goal != self._goal:
            self._goal = goal
            self._news.set()

    async def run(self) -> None:
        whole = True
        while True:
            if not self._news.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if whole else AGAIN_S):
                        await self._news.wait()
            self._news.clear()
            goal = self._goal
            assert goal is not None
            try:
                if goal.call > self.call:
                    self.turn += 1
                    self.call = goal.call
                    await self._server.answer()
                whole = await self._work_off(goal)
            except errors.Fenced:
                raise
            except errors.SpringtideError:
                whole = False

    async def _work_off(self, goal: messages.SlotGoal) -> bool:
        """All parcels in turn; whether all of it is done."""
        if not goal.settled:
            return True
        for parcel in (*self._settle_doubts(goal), *goal.parcels):
            for first in range(0, len(parcel.slots), CHUNK_SLOTS):
                if self._goal is not goal:
                    return False
                moved, whole = await self._hand(parcel, parcel.slots[first : first + CHUNK_SLOTS])
                if moved:
                    await self._server.wire.ask(messages.SlotsMoved(moved, parcel.server))
                if not whole:
                    return False
        return True

    def _settle_doubts(self, goal: messages.SlotGoal) -> list[messages.SlotParcel]:
        """As `server.migration.Handing` does."""
        ask: list[messages.SlotParcel] = []
        for slot, server in dict(self.doubts).items():
            owner = goal.placement.server_of_slot[slot]
            address = goal.addresses[server] if server < len(goal.addresses) else ""
            if owner != self._server.role.rank:
                del self.doubts[slot]
                self._server.store.clear_slot(slot)
            elif address:
                ask.append(messages.SlotParcel(server, address, (slot,)))
            else:
                del self.doubts[slot]
                self._server.open(slot)
        return ask

    async def _hand(self, parcel: messages.SlotParcel, slots: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Slots that the target has now, and whether that are all."""
        moved: list[int] = []
        for slot in slots:
            if slot not in self._server.gates and slot not in self.doubts:
                continue
            taken = await self._give(slot, parcel.server, parcel.address)
            if not taken:
                return tuple(moved), False
            self.given[slot] = (parcel.server, parcel.address)
            self.moved += 1
            moved.append(slot)
        return tuple(moved), True

    def take(self, slot: int, image: bytes, gift: int, turn: int) -> bool:
        """A slot of another server; whether it is or was here. What was said of a gift once is said ever after."""
        here = self._server
        if gift not in self.settled:
            had, able = slot in here.gates, here.knows_slots and not self.leaves
            self.settled[gift] = had or (able and turn == self.turn and not self.keeps(slot))
            if self.settled[gift] and not had:
                here.store.clear_slot(slot)
                here.store.import_slot(image)
                here.open(slot)
        return self.settled[gift]

    async def _give(self, slot: int, rank: int, address: str) -> bool:
        source, loop = self._server, asyncio.get_running_loop()
        target = source.network.at(address)
        if target is None:
            return False
        turn = target.moving.turn
        await asyncio.sleep(source.takes_s(source.disks.move_s))
        source.close(slot)
        self.under_way = slot
        if slot not in self.doubts:
            self._gifts[slot] = next(NAMES)
        gift = self._gifts[slot]
        image = source.store.export_slot(slot)
        answer: asyncio.Future[bool | None] = loop.create_future()

        def arrive() -> None:
            said = None
            if target.alive:
                said = target.moving.take(slot, image, gift, turn)
            if not answer.done():
                loop.call_later(source.takes_s(source.disks.freeze_s), _say, answer, said)

        loop.call_later(source.takes_s(source.disks.freeze_s), arrive)
        said = await answer
        self.under_way = None
        if said is None or source.network.breaks():
            self.doubts[slot] = rank
            return False
        self.doubts.pop(slot, None)
        if said:
            source.store.clear_slot(slot)
        else:
            source.open(slot)
        return said


def _say(answer: asyncio.Future[bool | None], said: bool | None) -> None:
    if not answer.done():
        answer.set_result(said)
