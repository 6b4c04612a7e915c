"""Whole jobs on a cluster that announces evictions, refuses resizes and has several namespaces."""

import contextlib

import pytest

from springtide.domain.spec.elastic_job import CheckpointWish, RoleWish
from springtide.platforms.k8s.api import kinds
from tests.platforms.k8s import conftest, making
from tests.platforms.k8s.test_whole_jobs import NODE, has_trained_and_saved, wish
from tests.platforms.k8s.whole import Whole
from tests.process import counting

pytestmark = [
    pytest.mark.process,
    pytest.mark.extra("aiohttp", "cryptography"),
    pytest.mark.timeout(600),
    pytest.mark.soak,
]

ANNOUNCED = "Preempted in favor of a pod of higher priority"
QUICKLY = {"settle_s": "0.2", "window_s": "0.5", "every_s": "0.5", "between_changes_s": "1"}
ROLES = {"workers": RoleWish(count=2), "servers": RoleWish(count=2)}


def nodes(cluster):
    return {f"{cluster.namespace}-{number}": NODE for number in (1, 2)}


@pytest.fixture
def whole_cluster(cluster, tmp_path):
    with Whole(cluster, tmp_path, nodes(cluster)) as whole:
        yield whole


@pytest.fixture
def second_namespace(emulated, cluster):
    """A second namespace: on a real cluster an operator for all of them would keep the jobs of others too."""
    with contextlib.contextmanager(conftest._with_namespace)(cluster.kubeconfig, emulated) as other:
        yield other.namespace


def announce(whole, pod):
    """Announce the deletion of a pod as a scheduler does."""
    told = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": ANNOUNCED,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }

    async def tell(client):
        conditions = (await client.get(kinds.PODS, pod))["status"].get("conditions", [])
        await client.patch(kinds.PODS, pod, {"status": {"conditions": [*conditions, told]}}, subresource="status")

    whole.cluster.run(tell)


def finished(whole, job, name, ids):
    whole.hurry(name)
    ended = whole.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "finished", f"{ended.why} {ended.detail}\n{whole.describe(job)}"
    assert whole.differences(job, ids) == {}
    return ended


def test_pods_about_to_be_removed_hand_over_while_running(whole_cluster, rng):
    ids = counting.draw(rng, 24_000)
    job = whole_cluster.submit(
        "announced",
        ids,
        **ROLES,
        data_workers="off",
        checkpoints=CheckpointWish(every_s=1.0),
        kubernetes=wish(grace_s=60),
    )
    whole_cluster.until(job, lambda status: has_trained_and_saved(status) and status.roles.workers.alive == 2)
    announce(whole_cluster, "announced-worker-0-0")
    announce(whole_cluster, "announced-server-0-0")
    whole_cluster.until(
        job,
        lambda _: (
            {"announced-worker-2-0", "announced-server-2-0"}
            <= {*whole_cluster.pods("worker"), *whole_cluster.pods("server")}
        ),
    )
    whole_cluster.until(
        job,
        lambda _: (
            not {"announced-worker-0-0", "announced-server-0-0"}
            & {*whole_cluster.pods("worker"), *whole_cluster.pods("server")}
        ),
    )
    whole_cluster.until(job, lambda status: (status.roles.workers.alive, status.roles.servers.alive) == (2, 2))
    ended = finished(whole_cluster, job, "announced", ids)
    assert ended.roles.relaunches == 0, "nobody was lost: those that went had handed over"
    decided = [event for event in job.story() if event["event"] == "decision" and ANNOUNCED in event["why"]]
    assert any("in place of worker-0" in event["what"] for event in decided), decided
    assert any("replace server-0 by server-2" in event["what"] for event in decided), decided


SIZES = """
import dataclasses, pathlib
from springtide.domain.plan.plan import Decision, ShapePlan, nothing

def by_a_sign(view, config):
    job, large = view.jobs[0], pathlib.Path({sign!r}).exists()
    wanted = dataclasses.replace(job.shape, worker_cpu=1.0 if large else 0.5)
    if job.shape == wanted:
        return nothing("it has the size that a test wants")
    return Decision(plans=(ShapePlan(job=job.name, shape=wanted, reason="a test wants it"),), why="a test wants it")
"""


def neighbour(whole, node, cpu):
    """A pod of another user on the same node."""
    who = {"runAsUser": 10001, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    made = making.pod("neighbour", "sleep", "3600", nodeName=node, securityContext=who)
    made["spec"]["containers"][0] |= {
        "resources": {"requests": {"cpu": cpu}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    whole.cluster.run(lambda client: client.create(kinds.PODS, made))


# tests/unit/platforms/k8s/operator/test_pod_plan.py covers what follows from Infeasible; Deferred waits on top of that
INFEASIBLE = pytest.param("800m", "", "its node cannot", marks=pytest.mark.soak)


@pytest.mark.parametrize(("room", "besides", "why"), [INFEASIBLE, ("1050m", "200m", "for 2 s")])
def test_worker_that_cannot_be_resized_is_replaced_elsewhere(whole_cluster, rng, room, besides, why):
    """Resizes that are Infeasible, or Deferred for longer than the limit."""
    ids, large = counting.draw(rng, 40_000), whole_cluster.signs / "large"
    job = whole_cluster.submit(
        "refused",
        ids,
        workers=RoleWish(count=1),
        servers=RoleWish(count=1),
        data_workers="off",
        plan=True,
        files={"sizes.py": SIZES.format(sign=str(large))},
        checkpoints=CheckpointWish(every_s=1.0),
        guards=False,
        planning={"policy": "sizes:by_a_sign"} | QUICKLY,
        kubernetes=wish(grace_s=60, resize_s=2.0),
    )

    def cores(pod):
        found = whole_cluster.cluster.run(lambda client: client.get(kinds.PODS, pod))
        return found["spec"]["nodeName"], found["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"]

    whole_cluster.until(job, has_trained_and_saved)
    whole_cluster.until(job, lambda _: cores("refused-worker-0-0")[1] == "500m")  # in place: the same pod
    node = cores("refused-worker-0-0")[0]
    smaller = {"status": {"allocatable": {"cpu": room}}}
    if besides:
        neighbour(whole_cluster, node, besides)
    whole_cluster.cluster.run(lambda client: client.patch(kinds.NODES, node, smaller, subresource="status"))
    large.touch()
    whole_cluster.until(job, lambda _: whole_cluster.pods("worker") == ["refused-worker-1-0"])
    elsewhere, size = cores("refused-worker-1-0")
    assert elsewhere != node and size in ("1", "1000m")
    ended = finished(whole_cluster, job, "refused", ids)
    assert ended.roles.relaunches == 0, "nobody was lost: the worker finished its batch and left"
    decided = [event["why"] for event in job.story() if event["event"] == "decision"]
    assert any(why in each for each in decided), decided


def test_one_operator_serves_jobs_of_the_same_name_in_two_namespaces(cluster, second_namespace, tmp_path, rng):
    ids = counting.draw(rng, 4_000)
    with Whole(cluster, tmp_path, nodes(cluster), second_namespace) as whole:
        given = {"workers": RoleWish(count=1), "servers": RoleWish(count=1), "data_workers": "off"}
        jobs = [
            whole.submit("same", ids, space=space, **given, kubernetes=wish())
            for space in (cluster.namespace, second_namespace)
        ]
        for job in jobs:
            whole.until(job, lambda status: status.samples > 100)
        whole.delete("same-worker-0-0", grace_s=0)  # of the first one alone
        whole.until(jobs[0], lambda status: status.roles.relaunches == 1)
        ends = [finished(whole, job, "same", ids) for job in jobs]
        assert [end.roles.relaunches for end in ends] == [1, 0]
