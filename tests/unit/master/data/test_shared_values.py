"""The master publishes shuffle addresses, forgets fenced workers, and admits pushes by staleness."""

import asyncio
import random

import pytest

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import events
from springtide.job.state import JobState
from springtide.master.core.context import ChangeSignal
from springtide.master.data.shared_values import ShufflerList, StalenessGate

ONE, TWO = LeaseHolder(0), LeaseHolder(1)


def state():
    made = JobState(JobSpec(name="job", workers=2, servers=1))
    for rank in range(2):
        made.handle(events.RoleJoined(Role(RoleKind.WORKER, rank), 0, 1), at=0.0)
    return made


def names(told):
    return [each.name for each in told.members]


def test_worker_gets_the_shuffler_list_once():
    known = ShufflerList(state())
    first = known.on_address(ONE, "host:1", 0)
    assert names(first) == ["worker-0.0"]
    both = known.on_address(TWO, "host:2", 0)
    assert names(both) == ["worker-0.0", "worker-1.0"]
    assert known.on_address(TWO, "host:2", both.digest) is None
    assert known.on_address(ONE, "host:1", first.digest) == both


def test_successor_master_builds_the_same_shuffler_list():
    one, two = ShufflerList(state()), ShufflerList(state())
    one.on_address(ONE, "host:1", 0)
    two.on_address(TWO, "host:2", 0)
    assert one.on_address(TWO, "host:2", 0).digest == two.on_address(ONE, "host:1", 0).digest


def test_worker_without_an_address_gets_no_shuffler_list():
    assert ShufflerList(state()).on_address(ONE, "", 0) is None


def test_fenced_worker_leaves_the_shuffler_list():
    job = state()
    known = ShufflerList(job)
    known.on_address(TWO, "host:2", 0)
    job.handle(events.RoleExited(RoleExit(role=Role(RoleKind.WORKER, 1), pid=1, signal="SIGKILL")), at=1.0)
    assert names(known.on_address(ONE, "host:1", 0)) == ["worker-0.0"]


def test_next_incarnation_replaces_the_previous():
    known = ShufflerList(state())
    known.on_address(ONE, "host:1", 0)
    assert names(known.on_address(LeaseHolder(0, 1), "host:9", 0)) == ["worker-0.1"]


def test_waiting_requests_recheck_after_every_change():
    async def run():
        turnstile, seen = ChangeSignal(), []

        def third_time():
            seen.append(1)
            return len(seen) == 3

        waiting = asyncio.create_task(turnstile.until(third_time))
        for looked in (1, 2):
            await asyncio.sleep(0)
            assert len(seen) == looked and not waiting.done()
            turnstile.wake_all()
        await waiting

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(50))
def test_no_push_exceeds_the_staleness_bound_and_every_worker_gets_its_turn(seed):
    print("seed", seed)
    chance = random.Random(seed)
    workers, bound = [LeaseHolder(rank) for rank in range(chance.randint(1, 6))], chance.randint(0, 7)
    gate, applied, read, pushes = StalenessGate(ChangeSignal()), 0, {}, dict.fromkeys(workers, 0)
    for _ in range(600):
        who = chance.choice(workers)
        if who not in read:
            if gate.admit(who, bound):
                read[who] = applied
        elif chance.random() < 1 / (1 + who.rank):  # some are slow
            assert applied - read.pop(who) <= bound
            applied += 1
            pushes[who] += 1
            gate.leave(who)
    assert min(pushes.values()) > 0, pushes


def test_staleness_bound_of_all_others_admits_every_worker():
    gate = StalenessGate(ChangeSignal())
    assert all(gate.admit(LeaseHolder(rank), 3) for rank in range(4))


def test_lost_worker_releases_its_staleness_slot():
    gate, first, second, third = StalenessGate(ChangeSignal()), LeaseHolder(0), LeaseHolder(1), LeaseHolder(2)
    assert gate.admit(first, 0)
    assert not gate.admit(second, 0) and not gate.admit(third, 0)
    gate.leave(second)  # it waited
    gate.leave(first)  # it computed
    assert gate.admit(third, 0)
    gate.leave(first)
    assert not gate.admit(second, 0), "leaving twice changes nothing"
