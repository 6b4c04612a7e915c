"""The brain service in the test's event loop: joint answers to masters, and a successor that knows them."""

import asyncio
import os
import signal

import pytest

from springtide import errors
from springtide.brain.decide.cluster_state import BrainRules
from springtide.brain.service import messages
from springtide.brain.service.service import BrainService
from springtide.domain.plan.view import PastJob
from tests.unit.brain.embedded_brain import SECRET, brain, master
from tests.unit.planning import views

pytestmark = pytest.mark.process


def test_two_masters_share_one_cluster_and_a_new_brain_keeps_the_promises(tmp_path):
    async def first():
        async with (
            brain(tmp_path) as service,
            master(tmp_path, service, key="a") as a,
            master(tmp_path, service, key="b") as b,
        ):
            one, two = await asyncio.gather(
                a.advise(views.waiting("train"), epoch=0, now=5.0), b.advise(views.waiting("train"), epoch=7, now=900.0)
            )
            assert (one.epoch, two.epoch) == (0, 7)
            assert one.plan.job == two.plan.job == "train"  # each hears of its own
            status = await a.ask(messages.Inspect())
            assert len(status.jobs) == 2 and {job.event for job in status.jobs} == {"created"}
            assert status.held.cpu == one.plan.shape.cpu + two.plan.shape.cpu <= 100
            assert 1 <= status.decisions <= 2 and len(status.executors.pids) == status.executors.wanted == 1
            for pid in status.executors.pids:
                os.kill(pid, signal.SIGKILL)
            await b.conclude(PastJob(name="train", shape=two.plan.shape, ended_at=1000.0))
            return one.plan

    async def second(plan):
        async with brain(tmp_path) as service, master(tmp_path, service, key="a") as a:
            status = await a.ask(messages.Inspect())
            (job,) = status.jobs
            assert job.promised == plan.shape and status.held.cpu == plan.shape.cpu and status.past == 1
            recalled = await a.ask(messages.Recall())
            assert recalled.total == 1
            assert [past.name for past in recalled.jobs] == ["train"]
            advice = await a.advise(views.running(plan.shape, name="train"), epoch=1, now=30.0)
            assert advice.why and (await a.ask(messages.Inspect())).jobs[0].promised is None
            await a.ask(messages.ResizeExecutors(2))
            assert (await a.ask(messages.Inspect())).executors.wanted == 2
            with pytest.raises(errors.BadInput, match="300 executors"):
                await a.ask(messages.ResizeExecutors(300))

    asyncio.run(second(asyncio.run(first())))


def test_two_brains_do_not_serve_from_one_folder(tmp_path):
    async def serve_twice():
        async with brain(tmp_path) as service:
            with pytest.raises(errors.BadInput, match=f"another brain .*{service.address}.* serves from"):
                async with brain(tmp_path):
                    pass

    asyncio.run(serve_twice())


def test_caller_without_the_secret_is_refused(tmp_path):
    from springtide.brain.service.advisers import RemoteAdviser

    async def ask():
        async with brain(tmp_path) as service:
            stranger = RemoteAdviser(service.address, SECRET)
            with pytest.raises(errors.BrainUnreachable, match="wrong secret"):
                await stranger.advise(views.waiting(), epoch=0, now=0.0)

    asyncio.run(ask())


def test_failed_database_write_is_retried():
    async def run():
        service, tries, written = BrainService(BrainRules(capacity=views.AMPLE), None, None), [], asyncio.Event()

        async def write_down():
            tries.append(1)
            if len(tries) == 1:
                raise OverflowError("a number of a job is too large for the database")
            written.set()

        service.write_down = write_down
        tidying = asyncio.create_task(service.tidy(0.001))
        async with asyncio.timeout(30):
            await written.wait()
        tidying.cancel()

    asyncio.run(run())
