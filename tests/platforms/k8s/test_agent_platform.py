"""Lease, plan and pods as the agent in a master pod uses them, on an API server."""

import asyncio
import contextlib
import itertools

import pytest

from springtide import errors
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, LEASES, PODS, SCALE_PLANS
from springtide.platforms.k8s.job import lease as leases
from springtide.platforms.k8s.job.job_status import StatusWriter
from springtide.platforms.k8s.job.lease import JobLease
from springtide.platforms.k8s.job.platform import KubernetesPlatform
from springtide.platforms.k8s.objects import names
from springtide.rpc.messages.types import DataStatus, JobStatus, RoleCount, RoleStatus
from tests import waiting
from tests.platforms.k8s import making

pytestmark = pytest.mark.extra("aiohttp", "cryptography")

WORKERS = [Life(Role(RoleKind.WORKER, rank)) for rank in range(3)]


@pytest.fixture
def job(cluster):
    """Definitions, a Lease and an empty plan, as the operator makes them."""

    async def make(client):
        await making.define_ours(client)
        await client.create(LEASES, LEASES.body("ctr-master", spec={"leaseTransitions": 0}))
        await client.create(SCALE_PLANS, SCALE_PLANS.body("ctr", spec={"job": "ctr", "origin": "master"}))
        await client.create(ELASTIC_JOBS, ELASTIC_JOBS.body("ctr", spec={"script": "train.py"}))

    cluster.run(make)
    return cluster


async def not_alive(holder):
    return False


async def is_alive(holder):
    return True


def launch(life, **limits):
    return RoleLaunch(life=life, module="m", limits=ProcessLimits(**limits))


def pod(life, **status):
    name = f"ctr-{life.role.kind}-{life.role.rank}-{life.incarnation}"
    body = PODS.body(name, spec={"containers": [{"name": "c", "image": "i"}], "schedulerName": "none"})
    body["metadata"]["labels"] = names.role_labels("ctr", life)
    return body


async def until_plan(client, expected, **first):
    """Wait for a plan with these pods, and with these fields in the first."""

    async def as_expected():
        plan = await client.get(SCALE_PLANS, "ctr")
        pods = plan["spec"].get("pods", [])
        named = [f"{each['role']}-{each['rank']}-{each.get('incarnation', 0)}" for each in pods]
        return plan if named == expected and all(pods[0][key] == value for key, value in first.items()) else None

    return await waiting.soon(as_expected, f"a plan of {expected} {first}")


def test_terms_rise_over_all_agents_and_the_previous_agent_is_fenced(job):
    async def work(client):
        first, second = JobLease(client, "ctr-master", "pod-1"), JobLease(client, "ctr-master", "pod-2")
        await first.take(is_alive)
        assert [await first.next_term(), await first.next_term()] == [1, 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await second.take(is_alive)  # its pod is there, and the lease has not run out
        await second.take(not_alive)
        assert await second.next_term() == 3
        with pytest.raises(errors.Fenced, match="pod-2"):
            await first.next_term()
        again = JobLease(client, "ctr-master", "pod-2")  # the same pod, its container started again
        await again.take(is_alive)
        assert await again.next_term() == 4

    job.run(work)


def test_expired_lease_can_be_taken(job, monkeypatch):
    async def work(client):
        await JobLease(client, "ctr-master", "pod-1").take(not_alive)
        monkeypatch.setattr(leases, "LOOK_S", 0.01)
        ours = itertools.count(0.0, leases.LASTS_S / 2)  # what passes here between two looks
        second = JobLease(client, "ctr-master", "pod-2", clock=lambda: next(ours))
        await second.take(is_alive)
        assert await second.next_term() == 1

    job.run(work)


def test_agent_that_finds_another_holder_has_lost_the_lease(job, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_S", 0.01)

    async def work(client):
        first, second = JobLease(client, "ctr-master", "pod-1"), JobLease(client, "ctr-master", "pod-2")
        await first.take(not_alive)
        keeping = asyncio.create_task(first.keep())
        await second.take(not_alive)
        await asyncio.wait_for(keeping, 60)
        assert first.lost.is_set()

    job.run(work)


@contextlib.asynccontextmanager
async def open_platform(client, **options):
    term = options.pop("term", 1)
    platform = KubernetesPlatform(client, "ctr", **{"pending_s": 60.0, "resize_s": 60.0, **options})
    await platform.open()
    if term:
        platform.writer.begin_term(term)
    try:
        yield platform
    finally:
        await platform.disconnect()


def test_started_roles_are_in_the_plan_and_exits_are_read_from_pods(job):
    async def work(client):
        async with open_platform(client) as platform:
            exits = []
            for life in WORKERS:
                platform.start(launch(life, cpu=0.5, memory=1 << 30), exits.append)
            plan = await until_plan(client, ["worker-0-0", "worker-1-0", "worker-2-0"])
            assert plan["spec"]["pods"][0] == {"role": "worker", "rank": 0, "cpu": 0.5, "memory": 1 << 30}
            assert plan["metadata"]["annotations"]["springtide.dev/term"] == "1"
            for life in WORKERS:
                await client.create(PODS, pod(life))
            killed = {
                "phase": "Failed",
                "containerStatuses": [
                    {
                        "name": "c",
                        "image": "i",
                        "imageID": "",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ],
            }
            await client.patch(PODS, "ctr-worker-0-0", {"status": killed}, subresource="status")
            await waiting.soon(lambda: len(exits) == 1)
            await client.delete(PODS, "ctr-worker-1-0", grace_s=0)
            await waiting.soon(lambda: len(exits) == 2)
            platform.stop(WORKERS[2], kill=True)
            plan = await until_plan(client, [])
            assert plan["spec"]["kill"] == ["ctr-worker-2-0"]
            await client.delete(PODS, "ctr-worker-2-0", grace_s=0)
            await waiting.soon(lambda: len(exits) == 3)
            assert [(each.oom, each.evicted) for each in exits] == [(True, False), (False, True), (False, False)]
            assert platform.running() == []

    job.run(work)


def test_unschedulable_pod_is_given_up_with_the_clusters_reason(job):
    async def work(client):
        at = [0.0]
        async with open_platform(client, pending_s=30.0, clock=lambda: at[0]) as platform:
            exits = []
            platform.start(launch(WORKERS[0]), exits.append)
            await client.create(PODS, pod(WORKERS[0]))
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
            await client.patch(PODS, "ctr-worker-0-0", {"status": {"conditions": [said]}}, subresource="status")
            seen = platform._pods
            await waiting.soon(lambda: seen.get("ctr-worker-0-0", {}).get("status", {}).get("conditions"))
            assert exits == []
            at[0] = 31.0
            await waiting.soon(lambda: exits)
            assert exits[0].unplaced == "Unschedulable: 0/3 nodes"
            await until_plan(client, [])

    job.run(work)


def test_successor_agent_adopts_running_pods_and_learns_of_exits(job):
    async def work(client):
        async with open_platform(client) as first:
            for life in WORKERS:
                first.start(launch(life), lambda ended: None)
            await until_plan(client, ["worker-0-0", "worker-1-0", "worker-2-0"])
            first.leave()
        await client.create(PODS, pod(WORKERS[0]))
        await client.patch(
            SCALE_PLANS, "ctr", {"status": {"made": {"worker-0": 0, "worker-1": 0}}}, subresource="status"
        )
        async with open_platform(
            client, term=0
        ) as second:  # it has no master yet, and writes nothing before it has one
            exits = []
            assert second.adopt(exits.append) == [WORKERS[0], WORKERS[2]]  # the last is to be made yet
            assert [(each.role, each.evicted) for each in exits] == [(WORKERS[1].role, True)]
            second.writer.begin_term(2)
            await until_plan(client, ["worker-0-0", "worker-2-0"])

    job.run(work)


def test_agent_of_an_earlier_term_writes_no_plan(job):
    async def work(client):
        async with open_platform(client) as first, open_platform(client) as second:
            second.writer.begin_term(2)
            second.start(launch(WORKERS[0]), lambda ended: None)
            await until_plan(client, ["worker-0-0"])
            first.start(launch(WORKERS[1]), lambda ended: None)
            with pytest.raises(errors.Fenced, match="number 2"):
                await asyncio.wait_for(asyncio.shield(first.failed), 60)
            await until_plan(client, ["worker-0-0"])

    job.run(work)


def test_conflicts_and_a_busy_server_delay_a_plan_without_loss(job, emulated):
    async def work(client):
        async with open_platform(client) as platform:
            emulated.faults.fail(409, times=2, verbs=("update",), resource="scaleplans")
            emulated.faults.fail(429, times=2, verbs=("update",), resource="scaleplans", retry_after_s=0)
            platform.start(launch(WORKERS[0]), lambda ended: None)
            await until_plan(client, ["worker-0-0"])

    job.run(work)


def test_pod_that_cannot_be_resized_is_announced_for_replacement(job):
    async def work(client):
        notices = []
        async with open_platform(client, notice=lambda life, why: notices.append(life)) as platform:
            platform.start(launch(WORKERS[0], cpu=1.0), lambda ended: None)
            assert not platform.hold(WORKERS[0], ProcessLimits(cpu=2.0)) and notices == [WORKERS[0]]
            await client.patch(SCALE_PLANS, "ctr", {"status": {"inPlaceResize": True}}, subresource="status")
            await waiting.soon(lambda: platform.status.in_place_resize)
            assert platform.hold(WORKERS[0], ProcessLimits(cpu=2.0))
            await until_plan(client, ["worker-0-0"], cpu=2.0)

    job.run(work)


def test_long_deferred_resize_replaces_the_pod(job):
    async def said(client, **pods):
        states = {f"ctr-{name}-0": {"phase": "Running", "resized": word} for name, word in pods.items()}
        await client.patch(SCALE_PLANS, "ctr", {"status": {"pods": states}}, subresource="status")

    async def work(client):
        notices, at = [], [0.0]
        options = {"notice": lambda life, why: notices.append((life, why)), "clock": lambda: at[0], "resize_s": 30.0}
        async with open_platform(client, **options) as platform:
            for life in WORKERS[:2]:
                platform.start(launch(life, cpu=1.0), lambda ended: None)
            await until_plan(client, ["worker-0-0", "worker-1-0"])
            await said(client, **{"worker-0": "Deferred", "worker-1": "Deferred"})
            entries = platform._entries
            await waiting.soon(lambda: all(entries[life].put_off is not None for life in WORKERS[:2]))
            at[0] = 29.0
            await said(client, **{"worker-1": "InProgress"})
            await waiting.soon(lambda: entries[WORKERS[1]].put_off is None)
            assert notices == []
            at[0] = 31.0
            await waiting.soon(lambda: notices)
            assert [life for life, _ in notices] == WORKERS[:1] and "has had no room for 30 s" in notices[0][1]

    job.run(work)


def test_status_is_written_beside_conditions_of_others(job):
    from springtide.platforms.k8s.job import job_status

    async def work(client):
        other = [{"type": "Accepted", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        await client.patch(ELASTIC_JOBS, "ctr", {"status": {"conditions": other}}, subresource="status")
        await StatusWriter(client, "ctr").write(job_status.failed("ctr", "no script"))
        status = (await client.get(ELASTIC_JOBS, "ctr"))["status"]
        assert (status["phase"], status["message"]) == ("Failed", "no script") and status["endedAt"]
        kinds = {each["type"]: each["status"] for each in status["conditions"]}
        assert kinds["Accepted"] == "True" and kinds["Finished"] == "True"

    job.run(work)


def test_cleared_status_fields_are_removed(job):
    from springtide.platforms.k8s.job import job_status

    async def work(client):
        runs = JobStatus(
            name="ctr",
            phase=JobPhase.RUNNING,
            why="",
            elapsed_s=1.0,
            roles=RoleStatus(workers=RoleCount(alive=2), lacks="1 worker"),
            data=DataStatus(shards_leased=3),
        )
        over = JobStatus(name="ctr", phase=JobPhase.FINISHED, why="all is trained", elapsed_s=2.0)
        for status in (runs, over):
            await StatusWriter(client, "ctr").write(status)
            found = (await client.get(ELASTIC_JOBS, "ctr"))["status"]
            assert job_status.read(found, "ctr", 0.0) == status

    job.run(work)
