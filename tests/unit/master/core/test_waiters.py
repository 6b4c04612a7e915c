"""Requests wait for one another, and for what they want to be true."""

import asyncio

from springtide.master.core import waiters


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
