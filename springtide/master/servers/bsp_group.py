"""Forms bsp groups. Workers wait here until all members of the group have asked. Then each worker gets a reply.

Only the formation is journaled (`job.core.events.GroupFormed`). If the master is replaced, waiting workers ask
again.
"""

import asyncio
import dataclasses

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.job import bsp_group, recovery
from springtide.job.bsp_group import GroupArrival, GroupFormation
from springtide.job.core import events
from springtide.job.state import JobState
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.master.servers.migration import SlotMigration
from springtide.rpc.messages import coordination


class BspRendezvous:
    """Workers that wait for a group, and the last reply that each worker got."""

    def __init__(self, context: MasterContext, migration: SlotMigration, checkpoints: CheckpointSchedule) -> None:
        self._context, self._record, self._changed = context, context.record, context.changed
        self._migration, self._checkpoints = migration, checkpoints
        self._arrived: dict[LeaseHolder, GroupArrival] = {}
        self._last: dict[LeaseHolder, coordination.GroupReply] = {}
        """Last reply to each worker."""
        self._met: dict[str, bytes] = {}
        """Values that members of the newest group have shared."""
        self._met_in = self._failed = 0
        """Generation of `_met`, and the last generation whose members could not all connect."""

    async def join(self, holder: LeaseHolder, request: coordination.GroupRequest) -> coordination.GroupReply:
        """Wait for a group. A worker whose reply was lost gets the same reply again."""
        state, last = self._record.state, self._last.get(holder)
        if not state.bsp.in_step:
            self._context.apply(events.BspBegan())
        if last is not None and request.generation < last.generation == state.bsp.generation and not state.group_lost:
            return last
        if request.bound and request.generation == state.bsp.generation and state.bsp.members:
            self._context.apply(events.GroupLost(bsp_group.rows_lost(state.nodes, state.bsp.members)))
        # the worker has left its last group, so the members of that group must not wait for its address
        if state.bsp.members.get(holder.rank) == holder.incarnation:
            self._failed = state.bsp.generation
            self._changed.wake_all()
        self._arrived[holder] = GroupArrival(request.fresh, request.idle, request.resting)
        self.gather()
        try:
            await self._changed.until(lambda: self._last.get(holder) is not last)
        except asyncio.CancelledError:
            self.leave(holder)
            raise
        return self._last[holder]

    async def meet(self, holder: LeaseHolder, request: coordination.MeetRequest) -> coordination.MeetReply:
        """Exchange addresses between the members of a group. Raises GroupChanged if a member will not arrive."""
        state, generation = self._record.state, request.generation

        def over() -> bool:
            member = state.bsp.members.get(holder.rank) == holder.incarnation
            return not member or state.bsp.generation != generation or state.group_lost or self._failed == generation

        if self._met_in < generation == state.bsp.generation:
            self._met, self._met_in = {}, generation
        met = self._met
        if not over():
            met.update(request.given)
            self._changed.wake_all()
        await self._changed.until(lambda: over() or met.keys() >= set(request.wanted))
        if over():
            raise errors.GroupChanged(f"group {generation} is over: a member is lost, or has joined a newer group")
        return coordination.MeetReply(dict(met))

    def leave(self, holder: LeaseHolder) -> None:
        self._arrived.pop(holder, None)

    def gather(self) -> None:
        """Form the group as soon as all required workers have arrived. If the group must change, halt its shards."""
        state, active = self._record.state, _active(self._record.state)
        if state.phase.over or not state.bsp.in_step:
            return
        if self._stop_shards(state, active):
            self._context.journaled(self._record.book.halt)
        if not self._arrived:
            return
        formed = bsp_group.form_group(
            self._arrived, ranks=tuple(state.bsp.members), active=active, workers=state.workers
        )
        if formed is None:
            return
        if not formed.known and self._trained(state):
            self._context.apply(events.GroupLost())
        elif formed.over:
            self._answer(formed, state.bsp.generation)
            self._changed.wake_all()
        elif formed.at_rest and not self._migration.settled_for(formed.members):
            self._migration.rest_group()
        else:
            self._answer(formed, state.bsp.generation + 1)
            self._context.apply(events.GroupFormed(formed.members, "all its members are here"))

    def _trained(self, state: JobState) -> bool:
        """Return True if the servers have steps of an earlier group. Without leases only the members could tell."""
        unleased = bool(state.bsp.members) and not self._record.book.passes
        return self._record.span.begun or (unleased and recovery.may_begin_anew(state.spec, state.phase))

    def _stop_shards(self, state: JobState, active: list[LeaseHolder]) -> bool:
        """Return True if the group must change before the next shard, and all new members have arrived."""
        chosen = {holder.rank for holder in active[: state.workers]}
        coming = [holder for holder in active if holder.rank not in state.bsp.members]
        changes = bool(state.bsp.members) and chosen != set(state.bsp.members)
        changes = changes or (bool(state.bsp.members) and self._migration.moving > 0)
        return changes and not self._record.book.group.halted and all(holder in self._arrived for holder in coming)

    def _answer(self, formed: GroupFormation, generation: int) -> None:
        """Reply to all waiting workers. Workers outside the group learn that the group continues without them."""
        state, at = self._record.state, self._context.clock()
        breaks = dataclasses.replace(state.safety.breaks)
        # the replies contain these counts, so count the new group first, in a copy
        bsp_group.note_formed(breaks, state, formed.members, at=at)
        restored = not formed.known and state.safety.known and self._record.book.has_model
        save = self._checkpoints.due_at_step(last=True) if formed.over else 0
        ranks = tuple(holder.rank for holder in formed.members)
        for holder in list(self._arrived):
            member = holder in formed.members
            self._last[holder] = coordination.GroupReply(
                generation,
                ranks,
                formed.leader.rank,
                first=not formed.known,
                resting=formed.resting,
                over=formed.over or not member,
                restored=restored,
                save=save,
                at_rest=formed.at_rest,
                deaths=breaks.losses,
                watched_s=breaks.watched_s(at),
                return_s=breaks.return_s,
                saved=state.safety.known,
            )
        self._arrived.clear()
        self._migration.wake_group()


def _active(state: JobState) -> list[LeaseHolder]:
    return [LeaseHolder(node.role.rank, node.incarnation) for node in state.of_kind(RoleKind.WORKER) if node.active]
