"""Workers meet at barriers and find what others share."""

import asyncio

import pytest

from springtide import errors
from springtide.master import meetings


def test_a_barrier_opens_when_all_have_come_and_can_be_used_again():
    async def run():
        barriers = meetings.Barriers(2)
        for _ in range(3):
            first = asyncio.create_task(barriers.arrive("weights", 0))
            await asyncio.sleep(0)
            assert not first.done()
            await barriers.arrive("weights", 1)
            await first

    asyncio.run(run())


def test_one_worker_twice_does_not_open_a_barrier():
    async def run():
        barriers = meetings.Barriers(2)
        tasks = [asyncio.create_task(barriers.arrive("weights", 0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        await barriers.arrive("weights", 1)
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_a_lookup_waits_for_the_value():
    async def run():
        shared = meetings.SharedValues()
        asked = asyncio.create_task(shared.lookup("address"))
        await shared.share("another", b"1")
        await asyncio.sleep(0)
        assert not asked.done()
        await shared.share("address", b"2")
        assert await asked == b"2"

    asyncio.run(run())


def test_a_value_that_is_too_large_is_refused():
    async def run():
        with pytest.raises(errors.BadInput, match="shared value 'tensor' of 1048577 bytes"):
            await meetings.SharedValues().share("tensor", bytes(2**20 + 1))

    asyncio.run(run())
