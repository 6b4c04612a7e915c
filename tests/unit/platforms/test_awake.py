"""An agent that stood still for a while does not take its own absence for the silence of others."""

import asyncio

import pytest

from springtide.platforms.agent.awake_clock import LOOK_S, MOST_S, AwakeClock


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_time_passes_while_the_clock_is_read():
    clock = Clock()
    awake = AwakeClock(clock)
    for _ in range(100):
        clock.now += LOOK_S
        awake.now()
    assert awake.now() == pytest.approx(100 * LOOK_S)


def test_time_in_which_the_process_was_stopped_does_not_count():
    clock = Clock()
    awake = AwakeClock(clock)
    clock.now += 75.0
    assert awake.now() == MOST_S


def test_whoever_answered_while_this_process_was_stopped_is_heard():
    clock = Clock()
    awake = AwakeClock(clock)

    async def answer(asked, here):
        asked.set()
        await here.wait()
        return "here"

    async def play():
        asked, here = asyncio.Event(), asyncio.Event()
        asking = asyncio.create_task(awake.within(30.0, answer(asked, here)))
        await asked.wait()
        clock.now += 75.0
        asyncio.get_running_loop().call_later(3 * LOOK_S, here.set)  # after some looks at a clock that has jumped
        assert await asking == "here"

    asyncio.run(play())


def test_whoever_is_silent_while_this_process_runs_is_given_up():
    async def play():
        with pytest.raises(TimeoutError):
            await AwakeClock().within(0.05, asyncio.Event().wait())

    asyncio.run(play())
