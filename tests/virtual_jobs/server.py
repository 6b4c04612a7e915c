"""Virtual parameter server: real slots in a real store, real checkpoints and messages, but no network port.

In: pushes through `network`; orders and slot goals of the master. Out: applied batches, segment files, migrated slots.
A real server works in threads (`server.__main__`, `server.checkpoints`, `server.migration`). The virtual server uses
tasks in virtual time.
"""

import asyncio
import contextlib
import itertools
import pathlib
import random
from dataclasses import dataclass
from functools import partial

import msgspec

from springtide import errors
from springtide.domain.core.roles import Placement, Role, RoleKind
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import SaveOrder, SaveRequest
from springtide.rpc.messages.types import MemberReport, SlotGoal, SlotHoldings, SlotParcel, SlotsMoved
from springtide.server import checkpoints, recovery, slot_loads
from springtide.server.migration import overtaken
from tests.virtual_jobs import counting_oracle, virtual_loop
from tests.virtual_jobs.machines import VirtualProcess
from tests.virtual_jobs.network import Network, Push, PushReply
from tests.virtual_jobs.step_buffer import StepBuffer
from tests.virtual_jobs.step_time import ROW_BYTES, StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """Mean durations of a server's own work."""

    save_s: float = 2.0
    """Seconds to write its part of a checkpoint."""
    restore_s: float = 5.0
    """Seconds to restore its slots."""
    move_s: float = 0.05
    """Seconds to copy one slot to another server while the source serves it."""
    freeze_s: float = 0.001
    """Seconds without an owner for the slot at the end of the copy."""


class VirtualServer:
    """One life of a virtual server."""

    def __init__(
        self,
        rank: int,
        incarnation: int,
        keys: counting_oracle.Keys,
        network: "Network[VirtualServer]",
        pace: StepTime,
        disks: Disks,
        chance: random.Random,
    ) -> None:
        self.role, self.incarnation = Role(RoleKind.SERVER, rank), incarnation
        self._keys, self.network, self._pace = keys, network, pace
        self.disks, self._chance = disks, chance
        self.store = counting_oracle.new_store(keys.shape[1])
        self.gates: dict[int, None] = {}
        """Slots that this server serves."""
        self._parts: dict[tuple[int, ...], counting_oracle.SlotPart] = {}
        self.steps = StepBuffer()
        self.hurried = self.knows_slots = False
        self.alive = True
        self.moving = SlotHandover(self)
        self.process: VirtualProcess | None = None
        self._over = asyncio.Event()
        self._placed = self._fenced = False
        self._keys_asked = self._busy_s = 0.0
        self._learned: SlotGoal | None = None

    async def run(self, process: VirtualProcess) -> int:
        """Join the job, restore the slots of the previous life, and serve to the end."""
        self.process, self.wire = process, process.wire
        hello = messages.JoinServer(self.role.rank, process.pid, self.incarnation)
        welcome = await self.wire.ask(hello)
        assert isinstance(welcome, messages.ServerWelcome)
        self.wire.introduce(msgspec.structs.replace(hello, welcomed=True))
        process.spawn(self._beat(welcome.spec.heartbeat_s))
        process.spawn(self.moving.run())
        if welcome.checkpoints:
            process.spawn(self._save(pathlib.Path(welcome.checkpoints), welcome.run))
        source = recovery.RestoredFrom("", 0)
        if welcome.restore is not None:
            await virtual_loop.sleep(self.takes_s(self.disks.restore_s))
            try:
                source = recovery.bring_back(self.store, welcome.restore)
            except errors.SpringtideError as error:
                await self.wire.ask(messages.ServerReady("", error=str(error)))
                raise
        if welcome.generation:
            self.steps.reset(welcome.generation, welcome.spec.workers)
        if welcome.placement is not None:
            self._place(welcome.placement)
        ready = messages.ServerReady(self.network.listen(self), source.number, source.where)
        placed = await self.wire.ask(ready)
        assert isinstance(placed, messages.PlacementReply)
        if welcome.placement is None:
            self._place(placed.placement)
        elif placed.placement.slots_of(self.role.rank) != welcome.placement.slots_of(self.role.rank):
            raise errors.JobFailed(
                "its slots changed while it restored them, so its next incarnation must restore them again"
            )
        self._placed = True
        await self._over.wait()
        if self._fenced:
            self.killed()
            return 1
        self.network.hang_up(self)
        self.alive = False
        return 0

    def ask_to_end(self) -> bool:
        self._over.set()
        return True

    def killed(self) -> None:
        self.alive = False
        self.gates = {}
        self.moving.doubts, self.moving.under_way = {}, None
        self.network.hang_up(self)

    def takes_s(self, mean_s: float) -> float:
        return self._chance.expovariate(1 / mean_s) if mean_s else 0.0

    # ---- slots ----

    def apply(self, push: Push) -> PushReply:
        """Apply a push to this server's slots; refuse other slots and name their owners."""
        part = self._part(push.covers)
        try:
            torn = counting_oracle.apply(self.store, self._keys, part, push.batches) if part.slots else frozenset()
        except errors.BadInput:  # the store is full
            return PushReply(failed=True)
        self._work(len(part.slots), push.batches.number)
        if len(part.slots) == len(push.covers):
            return PushReply(torn=torn)
        refused = frozenset(push.covers).difference(part.slots)
        goal = self._learned
        given = {slot: self.moving.given[slot] for slot in refused if slot in self.moving.given}
        placement, addresses = (goal.placement, goal.addresses) if goal is not None else (None, ())
        return PushReply(refused, torn, given, placement, addresses)

    def push_step(self, batches: counting_oracle.BatchRun) -> None:
        if slots := tuple(self.gates):
            counting_oracle.apply_step(self.store, self._keys, slots, batches)
            self._work(len(slots), batches.number)

    def _part(self, covers: tuple[int, ...]) -> counting_oracle.SlotPart:
        """Return the pushed slots that this server owns; cached, because they rarely change."""
        found = self._parts.get(covers)
        if found is None:
            mine = (slot for slot in covers if slot in self.gates)
            found = self._parts[covers] = counting_oracle.SlotPart.of(mine, self.store.slots)
        return found

    def _work(self, slots: int, batches: int) -> None:
        assert self.process is not None
        core_s = self._pace.server_core_s(slots, batches)
        self.process.cpu_s += core_s
        self._keys_asked += self._pace.keys(slots, batches)
        self._busy_s += core_s / self.process.cpu / self.process.speed

    def owns(self, slot: int) -> bool:
        return slot in self.gates

    def open(self, slot: int) -> None:
        self._parts.clear()
        self.gates[slot] = None
        self.moving.given.pop(slot, None)

    def close(self, slot: int) -> None:
        self._parts.clear()
        self.gates.pop(slot, None)

    def _place(self, placement: Placement) -> None:
        self._parts.clear()
        self.knows_slots = True
        self.gates = dict.fromkeys(placement.slots_of(self.role.rank))

    # ---- checkpoints ----

    async def _save(self, folder: pathlib.Path, run: str) -> None:
        """Save as `server.checkpoints.start` does."""
        saver = checkpoints.SlotSaver(
            self, folder, f"{self.role}.{self.incarnation}", run=run, rest=lambda seconds: None
        )
        term = number = part = 0
        while True:
            order = await self.wire.ask(SaveRequest(term, number, part))
            if isinstance(order, messages.HeartbeatReply):
                return
            if isinstance(order, SaveOrder):
                term, number, part = order.term, order.number, order.part
                await virtual_loop.sleep(self.takes_s(self.disks.save_s))
                await self.wire.ask(saver.save(order))

    # ---- heartbeats ----

    async def _beat(self, every_s: float) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            while not self._over.is_set():
                await virtual_loop.sleep(max(0.0, began + every_s - clock()))
                began = clock()
                await self.answer()
        except errors.Fenced:
            self._fenced = True
            self._over.set()

    async def answer(self) -> None:
        pulse = await self.wire.ask(self._now)
        assert isinstance(pulse, messages.HeartbeatReply)
        self.hurried = pulse.hurry
        self._fenced = self._fenced or pulse.fenced
        if pulse.stop or pulse.fenced:
            self._over.set()
        if pulse.goal is not None:
            self._learned = pulse.goal
            self.moving.heed(pulse.goal)

    def _now(self) -> messages.Heartbeat:
        """Return a heartbeat with the counters of a real server. Memory above the limit kills the server."""
        process, size = self.process, self._pace.slot_bytes()
        assert process is not None
        process.memory = self._pace.server_bytes(len(self.gates))
        if process.memory_limit is not None and process.memory > process.memory_limit:
            asyncio.get_running_loop().call_soon(partial(process.kill, oom=True))
        counters = {
            "pushed_keys": self._keys_asked,
            "update_ns": self._busy_s * 1e9,
            "rows": len(self.gates) * size / ROW_BYTES,
            "table_bytes": len(self.gates) * size,
        }
        report = MemberReport(counters=counters)
        if not self._placed:
            return messages.Heartbeat(report)
        counts = [slot_loads.SlotCount(slot, int(size), self.store.load(slot).requests) for slot in self.gates]
        return messages.Heartbeat(report, slots=slot_loads.pack(counts), holding=SlotHoldings(*self.moving.holding))


def owner_of(slot: int, servers: list[VirtualServer]) -> VirtualServer | None:
    found = [server for server in servers if slot in server.gates]
    assert len(found) <= 1, f"slot {slot} is served by {', '.join(str(server.role) for server in found)}"
    return found[0] if found else None


CHUNK_SLOTS = 8  # slots per report to the master
NAMES = itertools.count(1)  # unique transfer ids
AGAIN_S = 0.5  # wait after a target refused or was unreachable


class SlotHandover:
    """Slot migration of one life of a server."""

    def __init__(self, server: "VirtualServer") -> None:
        self._server = server
        self._goal: SlotGoal | None = None
        self._news = asyncio.Event()
        self.call = 0
        self.turn = 0
        """Epoch of incoming transfers, raised by every call of the master. A transfer that began in an earlier epoch is
        refused.
        """
        self.doubts: dict[int, int] = {}
        """Closed slots with an unconfirmed transfer, with the target server."""
        self.under_way: int | None = None
        """Slot that is closed here and not yet open at the target."""
        self.given: dict[int, tuple[int, str]] = {}
        """Migrated slots with their new server and address, to redirect requests."""
        self.leaves = False
        """True once this server accepts no more slots."""
        self.settled: dict[int, bool] = {}
        """Verdict on each incoming transfer, by id, as in cpp/server/requests/server_state.h."""
        self._gifts: dict[int, int] = {}
        """Id of the last transfer of each slot. An unconfirmed transfer is repeated with the same id."""
        self.moved = 0

    @property
    def holding(self) -> tuple[int, dict[int, int], bool]:
        """Newest call that arrived between transfers, unconfirmed transfers, and whether the server drains."""
        return self.call, dict(self.doubts), self.leaves

    def keeps(self, slot: int) -> bool:
        """Return True if this server still has a copy of a slot that it closed for another server."""
        return slot == self.under_way or slot in self.doubts

    def heed(self, goal: SlotGoal) -> None:
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

    async def _work_off(self, goal: SlotGoal) -> bool:
        """Transfer all parcels in turn; return True if all are done."""
        if not goal.settled:
            return True
        for parcel in (*self._settle_doubts(goal), *goal.parcels):
            for first in range(0, len(parcel.slots), CHUNK_SLOTS):
                if self._goal is not goal:
                    return False
                moved, whole = await self._hand(parcel, parcel.slots[first : first + CHUNK_SLOTS])
                if moved:
                    await self._server.wire.ask(SlotsMoved(moved, parcel.server))
                if not whole:
                    return False
        return True

    def _settle_doubts(self, goal: SlotGoal) -> list[SlotParcel]:
        """Settle unconfirmed transfers as `server.migration` does."""
        ask: list[SlotParcel] = []
        for slot, server in dict(self.doubts).items():
            owner = goal.placement.server_of_slot[slot]
            address = goal.addresses[server] if server < len(goal.addresses) else ""
            if owner != self._server.role.rank:
                del self.doubts[slot]
                self._server.store.clear_slot(slot)
            elif address:
                ask.append(SlotParcel(server, address, (slot,)))
            else:
                del self.doubts[slot]
                self._server.open(slot)
        return ask

    async def _hand(self, parcel: SlotParcel, slots: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Transfer slots; return those that the target has taken, and True if it took all."""
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
        """Take a slot from another server; return True if the slot is or was here. A repeated transfer gets the first
        verdict.
        """
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
        await virtual_loop.sleep(source.takes_s(source.disks.move_s))
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
