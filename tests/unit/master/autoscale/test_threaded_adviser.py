"""An adviser aside: what it does to its own loop is no matter of ours."""

import asyncio
import threading

import pytest

from springtide import errors
from springtide.domain.plan.plan import Advice
from springtide.master.autoscale.threaded_adviser import ThreadedAdviser
from tests import waiting


class Blocks:
    """Blocks its event loop until it is let go; notes in which thread it was made."""

    def __init__(self):
        self.made_in, self.let_go, self.closed = threading.current_thread(), threading.Event(), False

    async def advise(self, view, *, epoch, now):
        self.let_go.wait(30)
        return Advice(epoch=epoch, why="at last")

    async def conclude(self, past):
        raise errors.HistoryUnavailable("the disk is gone")

    async def close(self):
        self.closed = True


def test_one_that_blocks_does_not_block_us_and_is_not_asked_again_until_it_is_back():
    async def test():
        made = []
        aside = ThreadedAdviser(lambda: made.append(Blocks()) or made[0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await aside.advise(None, epoch=1, now=0.0)
        await waiting.soon(lambda: made)
        assert made[0].made_in is not threading.current_thread()
        with pytest.raises(errors.TemporaryError, match="earlier question"):
            await aside.advise(None, epoch=1, now=0.0)
        made[0].let_go.set()
        await waiting.soon(lambda: aside._busy is None or aside._busy.done())
        assert (await aside.advise(None, epoch=2, now=0.0)).epoch == 2
        await aside.close()
        assert made[0].closed

    asyncio.run(test())


def test_a_job_that_ends_while_it_is_asked_is_told_of_after_that():
    async def test():
        adviser = Blocks()
        aside = ThreadedAdviser(lambda: adviser)
        asked = asyncio.create_task(aside.advise(None, epoch=1, now=0.0))
        await waiting.soon(lambda: aside._busy is not None)
        told = asyncio.create_task(aside.conclude(None))
        await asyncio.sleep(0)
        assert not told.done()
        adviser.let_go.set()
        with pytest.raises(errors.HistoryUnavailable, match="the disk is gone"):
            await told
        assert (await asked).why == "at last"
        await aside.close()

    asyncio.run(test())


def test_what_it_raises_is_raised_here():
    async def test():
        aside = ThreadedAdviser(Blocks)
        with pytest.raises(errors.HistoryUnavailable):
            await aside.conclude(None)
        await aside.close()

    asyncio.run(test())


def test_one_that_was_never_asked_is_never_made():
    asyncio.run(ThreadedAdviser(lambda: pytest.fail("made")).close())
