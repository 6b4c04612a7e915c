"""What users ask for by the cluster is done once, said once, and lost by no trouble on the way."""

import asyncio

import pytest

from springtide import errors
from springtide.domain.job import Phase
from springtide.launch import pod_asks
from springtide.rpc import messages
from tests.unit.platforms.k8s import making

STATUS = messages.JobStatus(name="ctr", phase=Phase.RUNNING, why="", elapsed_s=1.0, workers_wanted=2, servers_wanted=1)


class Cluster:
    """Keeps what is said; the first of them fail."""

    def __init__(self, *troubles):
        self.troubles, self.said = list(troubles), {}

    async def patch(self, kind, name, body, *, subresource):
        if self.troubles:
            raise self.troubles.pop(0)
        self.said[name] = body["status"]["phase"]


class Statuses:
    generation = 0


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(pod_asks, "PAUSES_S", (0.0,))


def asks(cluster, *troubles):
    made = pod_asks.Asks(cluster, making.job(), None, None, Statuses())
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


async def until(true):
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0)


async def beside(work, true):
    task = asyncio.create_task(work)
    try:
        await until(true)
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_a_plan_waits_for_a_master_that_is_away_and_for_an_api_that_does_not_answer():
    async def work():
        cluster = Cluster(errors.ClusterUnreachable("503"), errors.ClusterUnreachable("503"))
        made = asks(cluster, errors.MasterUnreachable("it starts"), errors.ClusterUnreachable("?"), OSError("reset"))
        made.user_plan(plan("a", workers=3))
        made.user_plan(plan("b", workers=4))
        await beside(made.keep_plans(), lambda: len(cluster.said) == 2)
        assert cluster.said == {"a": "Superseded", "b": "Applied"}
        assert [each.workers for each in made.asked] == [4], "said again, not done again"

    asyncio.run(work())


def test_what_the_master_refuses_is_rejected_at_once():
    async def work():
        cluster = Cluster()
        made = asks(cluster, errors.BadInput("too many"))
        made.user_plan(plan("a", workers=3))
        await beside(made.keep_plans(), lambda: cluster.said)
        assert cluster.said == {"a": "Rejected"} and made.asked == []

    asyncio.run(work())


def test_a_changed_spec_waits_for_the_master_too():
    async def work():
        made = asks(Cluster(), errors.MasterUnreachable("it starts"))
        made._latest = making.job(spec={"workers": {"count": 5}}).job
        made._changed.set()
        await beside(made.keep_numbers(), lambda: made.asked)
        assert made.asked[0].workers == 5

    asyncio.run(work())
