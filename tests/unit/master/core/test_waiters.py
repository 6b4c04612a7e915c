"""Requests wait for one another, and for what they want to be true."""

import asyncio
import random

import pytest

from springtide.domain.data.leases import LeaseHolder
from springtide.master.core import waiters
from springtide.master.core.waiters import StalenessGate


def test_a_barrier_is_complete_when_all_have_come_and_one_worker_twice_is_not_all():
    arrivals = waiters.BarrierArrivals(2)
    for turn in (1, 2):
        assert not arrivals.complete("weights", turn, 0)
        assert not arrivals.complete("weights", turn, 0)
        assert not arrivals.complete("another", turn, 1)
        assert arrivals.complete("weights", turn, 1)


def test_whoever_waits_looks_again_after_every_change():
    async def run():
        turnstile, seen = waiters.ChangeSignal(), []

        def third_time():
            seen.append(1)
            return len(seen) == 3

        waiting = asyncio.create_task(turnstile.until(third_time))
        for looked in (1, 2):
            await asyncio.sleep(0)
            assert len(seen) == looked and not waiting.done()
            turnstile.turn()
        await waiting

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(50))
def test_no_push_is_staler_than_the_bound_and_everyone_comes_to_its_turn(seed):
    print("seed", seed)
    chance = random.Random(seed)
    workers, bound = [LeaseHolder(rank) for rank in range(chance.randint(1, 6))], chance.randint(0, 7)
    gate, applied, read, pushes = StalenessGate(), 0, {}, dict.fromkeys(workers, 0)
    for _ in range(600):
        who = chance.choice(workers)
        if who not in read:
            if gate.admit(who, bound):
                read[who] = applied
        elif chance.random() < 1 / (1 + who.rank):  # some are slow
            assert applied - read.pop(who) <= bound
            applied += 1
            pushes[who] += 1
            assert gate.leave(who)
    assert min(pushes.values()) > 0, pushes


def test_with_a_bound_of_all_others_everyone_is_inside_at_once():
    gate = StalenessGate()
    assert all(gate.admit(LeaseHolder(rank), 3) for rank in range(4))


def test_one_that_is_lost_makes_room_and_is_no_longer_waited_for():
    gate, first, second, third = StalenessGate(), LeaseHolder(0), LeaseHolder(1), LeaseHolder(2)
    assert gate.admit(first, 0)
    assert not gate.admit(second, 0) and not gate.admit(third, 0)
    assert gate.leave(second)  # it waited
    assert gate.leave(first)  # it computed
    assert gate.admit(third, 0)
    assert not gate.leave(first), "leaving twice changes nothing"
