"""User requests through the cluster are applied once, answered once, and survive outages."""

import asyncio

import pytest

from springtide import errors
from springtide.domain.spec.job_spec import JobPhase
from springtide.launch.k8s import pod_requests
from springtide.platforms.k8s.api import client
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus, RoleCount, RoleStatus
from springtide.telemetry import logs
from tests.unit.platforms.k8s import making
from tests.waiting import soon

STATUS = JobStatus(
    name="ctr",
    phase=JobPhase.RUNNING,
    why="",
    elapsed_s=1.0,
    roles=RoleStatus(workers=RoleCount(wanted=2), servers=RoleCount(wanted=1)),
)


class Cluster:
    """Records status writes; the first ones fail with the given errors."""

    def __init__(self, *troubles):
        self.troubles, self.said = list(troubles), {}

    async def patch(self, kind, name, body, *, subresource):
        if self.troubles:
            raise self.troubles.pop(0)
        self.said[name] = body["status"]["phase"]


class FakeStatusWriter:
    generation = 0


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(pod_requests, "PAUSES_S", (0.0,))


@pytest.fixture
def files(tmp_path):
    return logs.RunFiles(tmp_path)


def user_requests(cluster, files, *troubles, spec=None):
    made = pod_requests.UserRequests(cluster, making.job(spec=spec), files, None, FakeStatusWriter())
    made.status, made.asked = STATUS, []
    left = list(troubles)

    async def ask(request):
        if left:
            raise left.pop(0)
        made.asked.append(request)
        return messages.Ok()

    made.ask = ask
    return made


def plan(name, **spec):
    return {"metadata": {"name": name, "creationTimestamp": name}, "spec": {"job": "ctr", **spec}}


async def run_until(work, true):
    task = asyncio.create_task(work)
    try:
        await soon(true)
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_plan_request_waits_for_an_unreachable_master_and_api(files):
    async def work():
        cluster = Cluster(errors.ClusterUnreachable("503"), errors.ClusterUnreachable("503"))
        away = (errors.MasterUnreachable("it starts"), errors.ClusterUnreachable("?"), OSError("reset"))
        made = user_requests(cluster, files, *away)
        made.user_plan(plan("a", workers=3))
        made.user_plan(plan("b", workers=4))
        await run_until(made.keep_plans(), lambda: len(cluster.said) == 2)
        assert cluster.said == {"a": "Superseded", "b": "Applied"}
        assert [each.workers for each in made.asked] == [4], "said again, not done again"

    asyncio.run(work())


def test_plan_refused_by_the_master_is_rejected_at_once(files):
    async def work():
        cluster = Cluster()
        made = user_requests(cluster, files, errors.BadInput("too many"))
        made.user_plan(plan("a", workers=3))
        await run_until(made.keep_plans(), lambda: cluster.said)
        assert cluster.said == {"a": "Rejected"} and made.asked == []

    asyncio.run(work())


def test_changed_spec_waits_for_the_master(files):
    async def work():
        made = user_requests(Cluster(), files, errors.MasterUnreachable("it starts"))
        made._latest = making.job(spec={"workers": {"count": 5}}).job
        made._changed.set()
        await run_until(made.keep_numbers(), lambda: made.asked)
        assert made.asked[0].workers == 5

    asyncio.run(work())


class ClusterWithJob(Cluster):
    """Shows one job, as it is."""

    def __init__(self, spec):
        super().__init__()
        self._spec = spec

    async def watch(self, kind, *, fields):
        yield client.ObjectChange("added", making.body(spec=self._spec))
        await asyncio.Event().wait()


class Agent:
    def stop(self, why):
        raise AssertionError(why)


def run_agent_life(files, spec, true):
    """Requests of an agent to its master for this spec."""

    async def work():
        made = user_requests(ClusterWithJob(spec), files, spec=spec)
        made.agent = Agent()
        made.begin()
        keeping = asyncio.create_task(made.keep_spec())
        await run_until(made.keep_numbers(), lambda: true(made))
        await run_until(asyncio.sleep(0), lambda: True)
        keeping.cancel()
        await asyncio.wait({keeping})
        return made.asked

    return asyncio.run(work())


def test_spec_edited_without_an_agent_is_sent_to_the_next_master_once(files):
    before, edited = {"workers": {"count": 2}}, {"workers": {"count": 5}, "dataWorkers": "3"}
    assert run_agent_life(files, before, lambda made: made._heeded == made._latest) == []
    files.journal.touch()  # its master has begun, and its pod is lost
    (asked,) = run_agent_life(files, edited, lambda made: made.asked and made._heeded == made._latest)
    assert (asked.workers, asked.data_workers) == (5, 3)
    assert run_agent_life(files, edited, lambda made: made._heeded == made._latest) == [], (
        "the one after it has nothing to ask"
    )


def test_spec_edited_before_the_first_master_is_simply_used(files):
    run_agent_life(files, {"workers": {"count": 2}}, lambda made: True)
    assert run_agent_life(files, {"workers": {"count": 5}}, lambda made: made._heeded == made._latest) == []


def test_unreadable_previous_spec_is_logged_and_ignored(files, caplog):
    files.journal.touch()
    files.heeded.write_text("{")
    assert pod_requests.read_heeded(files, making.job().job) == making.job().job and "are unknown" in caplog.text
