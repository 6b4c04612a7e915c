"""Plans which server should own which slots, follows the moves of slots between servers, and runs a roll call after
a server is lost.

Only the servers know for certain which slots they own, so the record follows their reports. Goals and roll calls are
not journaled: a new master computes the goal again from the present placement, and starts a new roll call with a
higher number.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Iterable

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind, SlotMove
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobPhase
from springtide.embedding.placement import placement
from springtide.job.core import events, nodes
from springtide.job.core.nodes import ALIVE, NodeState
from springtide.job.rollcall import TERM, RollCall, ServerAnswer
from springtide.master.core.context import ChangeSignal, MasterContext
from springtide.master.core.record import JobRecord
from springtide.rpc.messages.types import SlotGoal, SlotHoldings, SlotParcel, SlotsMoved
from springtide.server import slot_loads

log = logging.getLogger(__name__)

BYTES_A_GB = 2.0**30
SMOOTHING = 0.5  # weight of a slot's newest request count in the exponential smoothing of these counts
NICE = 5  # niceness of the planning thread, because planning may use a core for a second or two


def _step_back() -> None:
    """Lower this thread's priority below that of all training on this machine."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


class SlotLoads:
    """Bytes and smoothed requests of each slot, as its server reports them."""

    def __init__(self) -> None:
        self.bytes: dict[int, float] = {}
        self.requests: dict[int, float] = {}
        self._counted: dict[int, tuple[int, int]] = {}
        """The server that owns each slot, and the request count that this server reported for the slot."""

    def add_counts(self, rank: int, counts: Iterable[slot_loads.SlotCount]) -> None:
        for slot, size, requests in counts:
            server, before = self._counted.get(slot, (rank, 0))
            fresh = requests - before if server == rank and requests >= before else requests
            self._counted[slot] = (rank, requests)
            self.bytes[slot] = float(size)
            self.requests[slot] = SMOOTHING * fresh + (1 - SMOOTHING) * self.requests.get(slot, float(fresh))


class GoalNews:
    """Event that ends the wait of held heartbeats of servers. A new goal, a returned server or the end of the job sets
    this event.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record, self._changed = record, ChangeSignal()
        self._goals = 0
        self._known: dict[int, int] = {}
        """Number of the newest goal sent to each server."""
        self._healing = False

    def announce(self) -> None:
        self._goals += 1
        self._changed.wake_all()

    async def wait(self, rank: int, seconds: float) -> None:
        state = self._record.state

        def news() -> bool:
            return self._known.get(rank, 0) < self._goals or state.healing or state.phase is not JobPhase.RUNNING

        await self._changed.until(news, at_most_s=seconds)
        self._known[rank] = self._goals

    def rouse(self) -> None:
        """Wake waiting heartbeats when a server is lost, when all servers are back, and when the job ends."""
        state = self._record.state
        if self._healing and not state.healing:
            self._goals += 1
        if self._healing or state.healing or state.phase is not JobPhase.RUNNING:
            self._changed.wake_all()
        self._healing = state.healing


class SlotMigration:
    """Slot migration of one job, on the master's side."""

    def __init__(self, context: MasterContext) -> None:
        self._context, self._record, self._changed = context, context.record, context.changed
        self.calling = ServerRollCall(context.record, context.term, context.changed)
        self._goal: dict[int, int] = {}
        """Target server of each slot that must move."""
        self._planned_for: tuple[int, ...] | None = None
        """Servers of the newest goal, until only the servers that stay own slots."""
        self._again = False
        self._planning: asyncio.Task[None] | None = None
        self.loads = SlotLoads()
        self._epochs: dict[LeaseHolder, int] = {}
        """Epoch of the placement that each worker incarnation uses."""
        self._moved = 0
        self._closed: dict[int, int] = {}
        """Incarnation of each server that owns no slots and accepts no more slots."""
        self._leaving: frozenset[int] = frozenset()
        self._news = GoalNews(context.record)
        self._group_rests = False
        """True if all ranks of a bsp group wait between two steps."""

    @property
    def moving(self) -> int:
        return len(self._goal)

    @property
    def goals(self) -> dict[int, int]:
        """Return the target server of each slot that should move."""
        return dict(self._goal)

    def bytes_on(self, rank: int) -> float:
        return sum(self.loads.bytes.get(slot, 0.0) for slot in self._slots_of(rank))

    def _slots_of(self, rank: int) -> tuple[int, ...]:
        placed = self._record.slots.placement
        return placed.slots_of(rank) if placed is not None else ()

    def settled_for(self, members: Iterable[LeaseHolder]) -> bool:
        epoch = self._record.slots.epoch
        return not self._goal and (epoch <= 1 or all(self._epochs.get(member, 0) >= epoch for member in members))

    @property
    def informed(self) -> bool:
        state, epochs = self._record.state, self._epochs
        alive = [node for node in state.of_kind(RoleKind.WORKER) if node.state in ALIVE]
        return all(
            epochs.get(LeaseHolder(node.role.rank, node.incarnation), 0) >= self._record.slots.epoch for node in alive
        )

    def rebalance(self) -> None:
        self._again = True

    @property
    def _blocked(self) -> bool:
        """Return True if ranks of a bsp group may be in the middle of a step. No slot may move then."""
        bsp = self._record.state.bsp
        return bsp.in_step and bool(bsp.members) and not self._group_rests

    def rest_group(self) -> None:
        """Let slots move, because all ranks of the bsp group wait between two steps."""
        if not self._group_rests:
            self._group_rests = True
            self._news.announce()

    def wake_group(self) -> None:
        self._group_rests = False

    # ---- reports of servers and workers ----

    def on_heartbeat(self, role: Role, packed: bytes, holding: SlotHoldings | None) -> None:
        if not self._record.slots.owners:
            return
        counts = slot_loads.unpack(packed, len(self._record.slots.owners))
        self.loads.add_counts(role.rank, counts)
        if holding is not None:
            self.calling.answered(role, holding, frozenset(count.slot for count in counts))
            if holding.closed and not counts:
                self._closed[role.rank] = self._record.state.node(role).incarnation
        claimed = tuple(count.slot for count in counts if self._record.slots.owners[count.slot] != role.rank)
        if claimed and not self.calling.open:  # record the move now, because the source server could not report it
            self._take(claimed, role.rank)

    async def reckon(self, role: Role, incarnation: int) -> None:
        """Find out which slots a relaunched server owns, before the master tells the server. Some of these slots may
        have moved to other servers, and some may have no owner.

        If a server was lost during a transfer, the reports of all living servers show who has the slot. This
        incarnation then restores from the checkpoint the slots that no living server has.
        """
        state, node = self._record.state, self._record.state.node(role)
        if not node.incarnation or node.address or node.coming:
            return

        def known() -> bool:
            # the server waits in this call, so it can send no heartbeats
            self._context.apply(events.RoleAlive(role, incarnation))
            return state.phase.over or state.fenced(role, incarnation) or self.calling.known()

        await self._changed.until(known)
        if state.phase.over or state.fenced(role, incarnation):
            raise errors.Fenced(f"{role} of incarnation {incarnation} was fenced while it waited for its slots")
        self.settle(role)

    def settle(self, heir: Role) -> None:
        found = self.calling.settle(heir)
        for server in sorted(set(found.values())):
            self._take(tuple(slot for slot, owner in found.items() if owner == server), server)
        if lost := sum(owner == heir.rank for owner in found.values()):
            why = f"{lost} slots were moving when a server was lost, and no living server has them"
            self._context.apply(events.DecisionMade(f"restore {lost} slots with {heir}", why))

    def moved(self, role: Role, report: SlotsMoved) -> None:
        """Record slots that a server handed over. Ignore a slot if the record says that a third server owns it."""
        known = self._record.slots.owners
        slots = tuple(slot for slot in report.slots if 0 <= slot < len(known) and known[slot] == role.rank)
        self._take(slots, report.server, report)

    def worker_goes_by(self, rank: int, incarnation: int, epoch: int) -> bool:
        """Record which placement a worker uses. Return True if this placement is newer than the worker's last one."""
        holder = LeaseHolder(rank, incarnation)
        newer = epoch > self._epochs.get(holder, 0)
        if newer:
            self._epochs[holder] = epoch
        return newer

    # ---- replies to servers and workers ----

    async def hold(self, role: Role, seconds: float) -> None:
        await self._news.wait(role.rank, seconds)

    def goal_for(self, role: Role) -> SlotGoal | None:
        placed = self._record.slots.placement
        called, leave = self.calling.open, self._record.state.node(role).state is NodeState.DRAINING
        moves = self.calling.moves or bool(self._goal)  # if no slots move, no server has a goal to cancel
        if placed is None or (placed.epoch == 1 and not moves and not called and not leave):
            return None
        parcels: dict[int, list[int]] = {}
        held = self._record.state.healing or called or self._blocked
        for slot, target in () if held else self._goal.items():
            if self._record.slots.owners[slot] == role.rank and self._record.slots.addresses[target]:
                parcels.setdefault(target, []).append(slot)
        return SlotGoal(
            placed,
            self._record.slots.addresses,
            tuple(
                SlotParcel(target, self._record.slots.addresses[target], tuple(sorted(slots)))
                for target, slots in sorted(parcels.items())
            ),
            self.calling.number,
            settled=not called,
            hurry=self._record.state.node(role).departure.shunned,
            leave=leave,
        )

    def news_for(self, epoch: int) -> SlotGoal | None:
        placed = self._record.slots.placement
        if placed is None or epoch >= placed.epoch or self._record.state.healing:
            return None
        return SlotGoal(placed, self._record.slots.addresses)

    # ---- time ----

    def tick(self) -> None:
        state = self._record.state
        self._news.rouse()
        if not self._record.slots.owners or state.phase.over or state.healing:
            return
        self._release_drained()
        stay, have = nodes.staying_servers(state.nodes), set(self._record.slots.owners)
        self._drop_what_leaves(stay)
        if have == set(stay):
            self._planned_for = None
        # servers that must leave still own slots, because these slots arrived after the last goal was made
        stranded = bool(have - set(stay)) and not self._goal
        busy = self._planning is not None and not self._planning.done()
        needed = have != set(stay) and stay != self._planned_for
        if stay and not busy and (self._again or stranded or needed):
            self._planning = asyncio.get_running_loop().create_task(self._plan(stay))

    def _drop_what_leaves(self, stay: tuple[int, ...]) -> None:
        """Cancel moves of slots to servers that must leave, and inform all servers immediately."""
        nodes = self._record.state.of_kind(RoleKind.SERVER)
        leaving = frozenset(node.role.rank for node in nodes if node.state is NodeState.DRAINING)
        goal = {slot: target for slot, target in self._goal.items() if target in stay}
        if leaving != self._leaving or goal != self._goal:
            self._leaving, self._goal = leaving, goal
            self._news.announce()

    async def _plan(self, stay: tuple[int, ...]) -> None:
        owners = self._record.slots.owners
        load = [
            placement.SlotLoad(bytes=self.loads.bytes.get(slot, 0.0), requests=self.loads.requests.get(slot, 0.0))
            for slot in range(len(owners))
        ]
        by_rank = {node.role.rank: node for node in self._record.state.of_kind(RoleKind.SERVER)}
        servers = {
            rank: placement.ServerCapacity(
                cpu=by_rank[rank].cpu or 1.0, memory=(by_rank[rank].memory or BYTES_A_GB) / BYTES_A_GB
            )
            for rank in stay
        }
        thread = concurrent.futures.ThreadPoolExecutor(1, "springtide-moves", initializer=_step_back)
        try:
            moves = await asyncio.get_running_loop().run_in_executor(thread, placement.moves, owners, servers, load)
        finally:
            thread.shutdown(wait=False)
        # if a server was lost since then, the next tick plans again without it
        if nodes.staying_servers(self._record.state.nodes) == stay:
            self._planned_for, self._again = stay, False
            self._begin(moves, servers, owners, load)

    def _begin(
        self,
        moves: tuple[SlotMove, ...],
        servers: dict[int, placement.ServerCapacity],
        owners: tuple[int, ...],
        load: list[placement.SlotLoad],
    ) -> None:
        self._goal = {move.slot: move.target for move in moves if self._record.slots.owners[move.slot] != move.target}
        self.calling.moves = True
        self._news.announce()
        names = ", ".join(f"server-{rank}" for rank in sorted(servers))
        leaving = sorted(set(owners) - set(servers))
        worst = max(placement.balance(owners, servers, load).values())
        going = f"{', '.join(f'server-{rank}' for rank in leaving)} {'leaves' if len(leaving) == 1 else 'leave'}, and "
        why = (
            f"slots should lie on {names}; {going if leaving else ''}"
            f"a server was {worst:.0%} from its share of bytes or requests"
        )
        self._context.apply(events.DecisionMade(f"move {len(self._goal)} of {len(owners)} slots", why))

    def _take(self, slots: tuple[int, ...], server: int, report: SlotsMoved | None = None) -> int:
        """Record the new owner of slots. Each change of owner is logged once, when it is first reported: by the source
        (with `report`), by the target's heartbeat, or by a roll call.
        """
        sources = collections.Counter(owner for slot in slots if (owner := self._record.slots.owners[slot]) != server)
        changed = self._context.journaled(self._record.slots.move, slots, server)
        for slot in slots:
            if self._goal.get(slot) == server:
                del self._goal[slot]
        self._moved += changed
        measured = report or SlotsMoved(slots, server)
        for source, count in sorted(sources.items()):
            self._context.log_event(
                "moved",
                slots=count,
                source=f"server-{source}",
                target=f"server-{server}",
                bytes=measured.bytes,
                seconds=round(measured.seconds, 4),
                longest_freeze_ms=round(measured.longest_freeze_s * 1e3, 3),
                left=self.moving,
            )
        if changed and not self._goal and self._moved:
            self._context.apply(events.DecisionMade(f"{self._moved} slots have moved", "the goal is reached"))
            self._moved = 0
        return changed

    def _release_drained(self) -> None:
        """Release drained servers that have no slots, as soon as all workers use a placement without these servers.

        A server must also have declared that it accepts no more slots. Without this declaration, the server could lose
        slots of an earlier goal that are still on their way.
        """
        state = self._record.state
        have, informed = set(self._record.slots.owners), self.informed
        for node in state.of_kind(RoleKind.SERVER):
            closed = self._closed.get(node.role.rank) == node.incarnation
            if node.state is NodeState.DRAINING and node.role.rank not in have and informed and closed:
                self._context.apply(events.ServerEmptied(node.role))


# longest time in seconds to hold a reply, so that a server without moving slots learns quickly that all servers have
# stopped
HOLD_S = 1.0


class ServerRollCall:
    """Roll calls of one master."""

    def __init__(self, record: JobRecord, term: int, changed: ChangeSignal) -> None:
        self._record, self._changed = record, changed
        self._call = RollCall(term * TERM)
        self._called = False
        self._away: dict[int, int] = {}
        """Servers known to be lost: rank, and the incarnation that will replace it."""
        self.moves = term > 1
        """True if slots may be in transfer, so that servers must be asked. A new master assumes such transfers after a
        takeover.
        """

    @property
    def number(self) -> int:
        """Return the number of the newest roll call, which servers must answer; 0 if there was no roll call."""
        return self._call.number if self._called else 0

    @property
    def open(self) -> bool:
        self._notice()
        return self._call.open

    def living(self) -> set[int]:
        servers = self._record.state.of_kind(RoleKind.SERVER)
        return {node.role.rank for node in servers if node.address and node.state in ALIVE}

    def answered(self, role: Role, holding: SlotHoldings, owned: frozenset[int]) -> None:
        self._notice()
        if self._call.answer(role.rank, holding.call, ServerAnswer(owned, holding.doubts), self.living()):
            self._changed.wake_all()

    async def gone_on(self, holding: SlotHoldings | None) -> None:
        """Delay the reply to the heartbeat of a server that has answered this roll call. The delay ends when a new roll
        call begins, this roll call ends, or a timeout expires.
        """
        number = self.number
        if holding is None or not self.open or holding.call < number:
            return
        await self._changed.until(lambda: self.number != number or not self.open, at_most_s=HOLD_S)

    def known(self) -> bool:
        """Return True if all servers have answered, so that the slots of a lost server are known."""
        return not self.open or self._call.complete(self.living())

    def settle(self, heir: Role) -> dict[int, int]:
        if not self.open:
            return {}
        found = self._call.changes(self._record.slots.owners, self.living(), heir.rank)
        self._call.close()
        return found

    def _notice(self) -> None:
        away = {
            node.role.rank: node.incarnation
            for node in self._record.state.of_kind(RoleKind.SERVER)
            if node.incarnation and not node.address and not node.coming and node.state is not NodeState.GONE
        }
        fresh = any(self._away.get(rank) != life for rank, life in away.items())
        self._away = away
        if fresh and self.moves and self._record.slots.owners:
            self._called = True
            self._call.begin()
            self._changed.wake_all()
