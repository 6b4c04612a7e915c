import asyncio

from springtide.platforms.k8s.operator import process
from springtide.platforms.k8s.operator.process import WorkQueue
from tests.waiting import soon


def test_job_that_cannot_be_examined_delays_no_other(monkeypatch):
    monkeypatch.setattr(process, "PAUSES_S", (3600.0,))
    looked = []

    async def work():
        other = asyncio.Event()

        async def attend(key):
            looked.append(key)
            if key == ("ads", "broken"):
                raise KeyError("an object that nobody thought of")
            other.set()

        desk = WorkQueue(attend)
        desk.note(("ads", "broken"))
        working = asyncio.create_task(desk.run())
        await soon(lambda: looked)
        desk.note(("ads", "ctr"))
        async with asyncio.timeout(60):
            await other.wait()
        assert desk.jobs == {("ads", "broken")}  # it is looked at again, later
        working.cancel()

    asyncio.run(work())
    assert looked == [("ads", "broken"), ("ads", "ctr")]
