"""The executor pool: any number of processes, resized or killed at any time."""

import asyncio
import contextlib
import os
import signal

import pytest

from springtide import errors
from springtide.brain.service import child_process
from springtide.brain.service.executor_pool import ExecutorPool, PolicyQuery
from springtide.domain.plan.plan import nothing
from springtide.domain.spec.planning_config import PlanningConfig
from tests.unit.planning import views
from tests.waiting import soon

CONFIG = PlanningConfig(exact_seconds=0)
HERE = "tests.unit.brain.service.test_executor_pool"
pytestmark = pytest.mark.process


def kill_once(view, config):
    """Policy that kills its first executor; a file marks that it ran."""
    try:
        os.close(os.open(view.jobs[0].name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return nothing("survived")
    os.kill(os.getpid(), signal.SIGKILL)


def kill_always(view, config):
    os.kill(os.getpid(), signal.SIGKILL)


def prints(view, config):
    print("into the frames?", flush=True)
    os.write(1, b"into the frames!")
    return nothing("printed")


@contextlib.asynccontextmanager
async def pool(executors):
    found = ExecutorPool()
    try:
        await found.resize(executors)
        yield found
    finally:
        await found.close()


def task(policy, name="job"):
    return PolicyQuery(
        f"{HERE}:{policy}" if policy in globals() else policy, views.cluster(views.waiting(name)), CONFIG
    )


def test_task_of_a_killed_executor_is_done_by_another(tmp_path):
    async def run():
        async with pool(2) as two:
            decision = await two.decide(task("springtide"))
            assert decision.plan_for("job") is not None
            printed = await two.decide(task("prints"))
            survived = await two.decide(task("kill_once", str(tmp_path / "first")))
            assert (printed.why, survived.why, two.lost) == ("printed", "survived", 1)
            lost = await two.decide(task("kill_always"))
            assert "no executor could decide, 3 were lost" in lost.why
            return await two.decide(task("static"))

    assert asyncio.run(run()).why


def test_number_of_executors_changes_at_run_time():
    async def run():
        async with pool(1) as some:
            await some.decide(task("static"))
            (first,) = some.pids
            await some.resize(3)
            await asyncio.gather(*(some.decide(task("static")) for _ in range(6)))
            await soon(lambda: len(some.pids) == 3)
            assert first in some.pids
            await some.resize(1)
            await soon(lambda: some.pids == (first,))
            with pytest.raises(errors.BadInput, match="0 executors"):
                await some.resize(0)
            return await some.decide(task("static"))

    assert asyncio.run(run()).why


def test_executor_that_cannot_start_is_started_later(monkeypatch):
    start, refused = asyncio.create_subprocess_exec, []

    async def at_the_second_try(*arguments, **more):
        if not refused:
            refused.append(arguments)
            raise BlockingIOError("no process can be had")
        return await start(*arguments, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", at_the_second_try)
    monkeypatch.setattr("springtide.brain.service.executor_pool.AGAIN_S", 0.0)

    async def run():
        async with pool(1) as one:
            return await one.decide(task("static"))

    assert asyncio.run(run()).why and refused


def test_ending_process_is_reaped_when_its_caller_is_cancelled():
    async def run():
        process = await child_process.start("springtide.brain.service.executor_pool")
        ending = asyncio.create_task(child_process.end(process))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        return process.returncode

    assert asyncio.run(run()) == -signal.SIGKILL
