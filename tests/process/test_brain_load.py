"""Load test: five hundred masters and one brain; all are answered in time within the cluster's capacity.

make soak ARGS="tests/process/test_brain_load.py -s"
"""

import asyncio
import json
import statistics
import time

import psutil
import pytest

from springtide.brain.service import messages, serve
from springtide.brain.service.advisers import RemoteAdviser
from tests.process import running
from tests.unit.planning import views

pytestmark = [pytest.mark.process, pytest.mark.soak]

MASTERS, SECONDS, EVERY_S, CORES = 500, 60.0, 2.0, 20_000


async def one_master(number, remote, until, waits):
    """A master that asks every two seconds and takes the planned shape five seconds later."""
    shape, epoch, now = views.shape(workers=1 + number % 4), 0, 200.0
    tried = [views.shape(workers=1 + (number + at) % 8, servers=1 + at % 3) for at in range(6)]
    await asyncio.sleep(EVERY_S * number / MASTERS)
    while time.monotonic() < until:
        began = time.monotonic()
        view = views.running(shape, tried=tried, name=f"job-{number}", features={"model": f"m{number % 7}"})
        view = views.at_times(view, started_at=0.0, last_change_at=now - 100.0, samples_done=now * 1e4)
        advice = await remote.advise(view, epoch=epoch, now=now)
        waits.append(time.monotonic() - began)
        if advice.plan is not None:
            assert view.bounds.holds(advice.plan.shape)
            await asyncio.sleep(5.0)
            shape, epoch = advice.plan.shape, epoch + 1
        now += EVERY_S
        await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))
    return shape


async def all_masters(address, secret):
    remotes = [RemoteAdviser(address, secret, key=f"host-{number}", connect_s=30.0) for number in range(MASTERS)]
    waits, until = [], time.monotonic() + SECONDS
    try:
        shapes = await asyncio.gather(*(one_master(n, remote, until, waits) for n, remote in enumerate(remotes)))
        return waits, shapes, await remotes[0].ask(messages.Inspect())
    finally:
        for remote in remotes:
            await remote.close()


def test_five_hundred_masters_are_answered_in_time(tmp_path):
    arguments = ("brain", "serve", "--listen", "127.0.0.1:0", "--capacity", str(CORES))
    with running.springtide(*arguments, folder=tmp_path) as brain:
        address = brain.wait_for("brain: serving at ").split("serving at ")[1].split(";")[0]
        secret = bytes.fromhex(serve.secret_file(tmp_path / ".springtide" / "brain").read_text())
        waits, shapes, status = asyncio.run(all_masters(address, secret))
        process = psutil.Process(brain.process.pid)
        own = sum(process.cpu_times()[:2])
        executors = sum(sum(child.cpu_times()[:2]) for child in process.children())
        memory = process.memory_info().rss
    assert len(status.jobs) == MASTERS and status.held.cpu <= CORES and sum(one.cpu for one in shapes) <= CORES
    found = {
        "masters": MASTERS,
        "consults": len(waits),
        "per_s": len(waits) / SECONDS,
        "decisions": status.decisions,
        "wait_p50_s": statistics.median(waits),
        "wait_p99_s": statistics.quantiles(waits, n=100)[98],
        "wait_max_s": max(waits),
        "last_decision_s": status.decision_s,
        "brain_cpu_share": own / SECONDS,
        "executor_cpu_share": executors / SECONDS,
        "brain_mb": memory / 2**20,
    }
    print("\n" + json.dumps({name: round(value, 3) for name, value in found.items()}))
