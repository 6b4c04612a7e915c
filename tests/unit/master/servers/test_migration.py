"""Servers get goals with a waiting heartbeat, as soon as there are any."""

import asyncio
import threading
import time

from springtide.domain.core.roles import Role, RoleKind
from springtide.embedding.placement import placement
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import GroupRequest
from springtide.rpc.messages.types import SlotHoldings, SlotsMoved
from springtide.rpc.transport.listener import Peer
from springtide.server import slot_loads
from springtide.telemetry import events as event_log
from tests.unit.master.servers.test_recovery import Job


def run(job, work):
    async def body():
        await job.begin()
        await work()

    asyncio.run(body())
    job.story.close()


def test_heartbeat_without_news_is_answered_after_its_interval(tmp_path):
    job = Job(tmp_path, heartbeat_s=0.1)

    async def work():
        began = time.monotonic()
        pulse = await job.ask("server-0", messages.Heartbeat())
        assert pulse.goal is None and time.monotonic() - began >= 0.1

    run(job, work)


def test_goal_is_sent_with_the_waiting_heartbeat(tmp_path):
    job = Job(tmp_path, heartbeat_s=60.0)

    async def work():
        waiting = asyncio.create_task(job.ask("server-1", messages.Heartbeat()))
        await asyncio.sleep(0)
        job.desk.context.apply(events.ServerReplaced(1, "its machine is very slow", at_once=True))
        job.desk.tick()
        async with asyncio.timeout(30.0):
            goal = (await waiting).goal
        assert goal.hurry and [parcel.server for parcel in goal.parcels] == [0]
        assert goal.parcels[0].slots == job.desk.record.slots.placement.slots_of(1)

    run(job, work)


def test_heartbeat_is_not_held_while_a_server_is_lost(tmp_path):
    job = Job(tmp_path, heartbeat_s=60.0)

    async def work():
        waiting = asyncio.create_task(job.ask("server-0", messages.Heartbeat()))
        await asyncio.sleep(0)
        await job.kill()
        job.desk.tick()
        async with asyncio.timeout(30.0):
            await waiting
        assert job.desk.state.node(Role(RoleKind.SERVER, 1)).incarnation == 1

    run(job, work)


def test_slots_reported_by_the_target_first_are_logged_as_moved_once(tmp_path):
    job = Job(tmp_path, heartbeat_s=0.01)

    async def work():
        loads = slot_loads.pack(slot_loads.SlotCount(slot, 8, 1) for slot in (3, 4))
        await job.ask("server-1", messages.Heartbeat(slots=loads))
        await job.ask("server-0", SlotsMoved((3, 4, 5), 1))
        assert [job.desk.record.slots.owners[slot] for slot in (3, 4, 5)] == [1, 1, 1]

    run(job, work)
    moved = [line for line in event_log.read(job.story.path) if line["event"] == "moved"]
    assert [(line["slots"], line["source"], line["target"]) for line in moved] == [
        (2, "server-0", "server-1"),
        (1, "server-0", "server-1"),
    ]


def test_slots_that_arrive_at_a_draining_server_are_moved_on(tmp_path):
    job = Job(tmp_path, heartbeat_s=0.01)

    async def goal_of(server):
        async with asyncio.timeout(30.0):
            while not ((goal := (await job.ask(server, messages.Heartbeat())).goal) and goal.parcels):
                job.desk.tick()
        return goal.parcels

    async def work():
        job.desk.context.apply(events.ServersScaled(1, "asked by a test"))
        job.desk.tick()
        (parcel,) = await goal_of("server-1")
        await job.ask("server-0", SlotsMoved((3, 4), 1))  # under way when it was told to leave, told late
        await job.ask("server-1", SlotsMoved(parcel.slots, 0))
        (rest,) = await goal_of("server-1")
        assert (rest.server, rest.slots) == (0, (3, 4))

    run(job, work)


def test_server_is_released_only_after_it_stops_accepting_slots(tmp_path):
    """An earlier goal may still bring it slots, which would be lost with it."""
    job = Job(tmp_path, heartbeat_s=0.01)
    leaver = Role(RoleKind.SERVER, 1)

    async def heard(**holding):
        pulse = await job.ask("server-1", messages.Heartbeat(holding=SlotHoldings(0, **holding)))
        job.desk.parts.migration.worker_goes_by(0, 0, job.desk.record.slots.epoch)
        job.desk.tick()
        return pulse.goal

    async def work():
        job.desk.context.apply(events.ServersScaled(1, "asked by a test"))
        job.desk.tick()
        await job.ask("server-1", SlotsMoved(job.desk.record.slots.placement.slots_of(1), 0))
        goal = await heard()
        assert goal.leave and job.desk.state.node(leaver).state is NodeState.DRAINING
        await heard(closed=True)
        assert job.desk.state.node(leaver).state is NodeState.GONE

    run(job, work)


def test_evicted_server_is_released_only_after_it_stops_accepting_slots(tmp_path):
    job = Job(tmp_path, heartbeat_s=0.01)
    leaver = Role(RoleKind.SERVER, 1)

    async def free(**holding):
        pulse = await job.ask("server-1", messages.Heartbeat(holding=SlotHoldings(0, **holding)))
        job.desk.parts.migration.worker_goes_by(0, 0, job.desk.record.slots.epoch)
        job.desk.tick()
        farewell = await job.ask("server-1", messages.EvictionNotice(leaver, 0, "its pod is being evicted"))
        job.desk.tick()
        return farewell.free, pulse.goal is not None and pulse.goal.leave

    async def work():
        assert await free() == (False, False)
        await job.ask("server-1", SlotsMoved(job.desk.record.slots.placement.slots_of(1), 0))
        assert await free() == (False, False), "it has none, but a goal from before may still bring it some"
        assert await free() == (False, True), "it was told to leave, and has not said that it does"
        assert await free(closed=True) == (True, True)
        assert job.desk.state.node(leaver).state is NodeState.GONE

    run(job, work)


async def add_server(job):
    """Add server-2 to the job's servers 0 and 1, and wait until it is ready."""
    job.desk.context.apply(events.ServersScaled(3, "asked by a test"))
    job.peers["server-2"] = Peer(address="server-2")
    await job.ask("server-2", messages.JoinServer(2, 3))
    await job.ask("server-2", messages.ServerReady("host:2"))


async def slots_for(job, server):
    """Tick until slots should move to this server."""
    async with asyncio.timeout(30.0):
        while server not in job.desk.parts.migration._goal.values():
            job.desk.tick()
            await asyncio.sleep(0)


def test_new_server_gets_slots_though_another_was_restored_during_planning(tmp_path, monkeypatch):
    job = Job(tmp_path, heartbeat_s=0.01)
    lost, plan = threading.Event(), placement.moves

    def plan_slowly(*given):
        assert lost.wait(30.0)
        return plan(*given)

    async def work():
        migration = job.desk.parts.migration
        monkeypatch.setattr(placement, "moves", plan_slowly)
        await add_server(job)
        job.desk.tick()
        assert migration._planning is not None
        await job.kill()
        lost.set()
        await migration._planning
        assert not migration.moving, "a plan for a lost server"
        await job.come_back()
        await slots_for(job, 2)

    run(job, work)


def test_new_server_gets_slots_that_were_withheld_for_a_while(tmp_path):
    job = Job(tmp_path, heartbeat_s=0.01)

    async def work():
        await add_server(job)
        await slots_for(job, 2)
        job.desk.context.apply(events.ServerReplaced(2, "its machine is very slow", at_once=True))
        job.desk.tick()
        assert not job.desk.parts.migration.moving
        job.desk.context.apply(events.RoleLate(Role(RoleKind.SERVER, 3), 0, 60.0))  # so the slow server stays
        await slots_for(job, 2)

    run(job, work)


def test_draining_server_gets_no_more_slots(tmp_path):
    job = Job(tmp_path, heartbeat_s=0.01)

    async def work():
        rollout = job.desk.parts.migration
        rollout._goal, rollout.calling.moves = {0: 1}, True  # as if server-1 were to have more
        assert [parcel.slots for parcel in rollout.goal_for(Role(RoleKind.SERVER, 0)).parcels] == [(0,)]
        job.desk.context.apply(events.ServersScaled(1, "asked by a test"))
        job.desk.tick()
        assert rollout.moving == 0 and not rollout.goal_for(Role(RoleKind.SERVER, 0)).parcels

    run(job, work)


def test_restarted_bsp_group_waits_until_slots_moved_and_workers_know_the_placement(tmp_path):
    """A server that got its first slots in the middle of a step would know nothing of it."""
    job = Job(tmp_path, heartbeat_s=0.01, sync="bsp")

    async def work():
        record, slots = job.desk.record, job.desk.record.slots.placement.slots_of(1)
        record.span.begun = False  # as after a return to the checkpoint: nobody has trained anything
        job.desk.context.apply(events.ServersScaled(1, "asked by a test"))
        job.desk.tick()
        async with asyncio.timeout(30.0):
            while not job.desk.parts.migration.moving:
                await asyncio.sleep(0)
        forming = asyncio.create_task(job.ask("worker-0", GroupRequest(fresh=True, idle=True)))
        await asyncio.sleep(0)
        goal = job.desk.parts.migration.goal_for(Role(RoleKind.SERVER, 1))
        assert [parcel.slots for parcel in goal.parcels] == [slots] and not forming.done()
        await job.ask("server-1", SlotsMoved(slots, 0))
        await asyncio.sleep(0)
        assert not forming.done() and job.desk.parts.migration.moving == 0
        await job.ask("worker-0", messages.Heartbeat(epoch=record.slots.epoch))
        async with asyncio.timeout(30.0):
            assert (await forming).at_rest

    run(job, work)
