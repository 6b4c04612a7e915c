"""Whole jobs through the Kubernetes API with injected faults; counts must be exact."""

import contextlib
import os
import signal

import pytest

from springtide.domain.spec.elastic_job import CheckpointWish, KubernetesWish, RoleWish, RunVolume
from springtide.platforms.k8s.api import kinds
from springtide.rpc.messages import messages
from tests.platforms.k8s.whole import GIB, Whole
from tests.process import counting

pytestmark = [
    pytest.mark.process,
    pytest.mark.extra("aiohttp", "cryptography"),
    pytest.mark.timeout(600),
]

NODE = (4.0, 8 * GIB)


@pytest.fixture
def whole_cluster(cluster, tmp_path):
    nodes = {f"{cluster.namespace}-{number}": NODE for number in (1, 2)}  # others may work on this cluster too
    with Whole(cluster, tmp_path, nodes) as whole:
        yield whole


def wish(**fields):
    volume = RunVolume(size="1Gi", shared=True)
    return KubernetesWish(run_volume=volume, **{"pending_s": 60.0, "grace_s": 5, **fields})


def has_trained_and_saved(status):
    return status.samples > 100 and status.checkpoints.number > 0


def test_k8s_job_trains_once_despite_pod_master_and_operator_loss(whole_cluster, rng):
    ids = counting.draw(rng, 8_000)
    job = whole_cluster.submit(
        "hurt",
        ids,
        workers=RoleWish(count=1),
        servers=RoleWish(count=1),
        data_workers="off",
        relaunches=50,
        checkpoints=CheckpointWish(every_s=1.0),
        kubernetes=wish(),
        pause_s=0.5,
    )
    whole_cluster.until(job, has_trained_and_saved)

    whole_cluster.operator.kill()
    whole_cluster.delete("hurt-worker-0-0", grace_s=0)
    (server,) = whole_cluster.kubelet.pids(whole_cluster.space, "hurt-server-0-0").values()
    os.kill(server, signal.SIGKILL)  # as the kernel does at a limit of memory
    whole_cluster.delete("hurt-master", grace_s=0)
    edited = {"spec": {"workers": {"count": 2}}}  # while nobody is there to heed it
    whole_cluster.cluster.run(lambda client: client.patch(kinds.ELASTIC_JOBS, "hurt", edited))
    whole_cluster.start_operator()
    whole_cluster.until(
        job,
        lambda status: (
            status.master.term > 1 < status.roles.relaunches
            and (status.roles.workers.alive, status.roles.servers.alive) == (2, 1)
        ),
    )
    whole_cluster.until(job, lambda _: "hurt-server-0-1" in whole_cluster.pods("server"))

    job.ask(messages.ScaleRequest(workers=1, why="asked by a test"))
    whole_cluster.hurry("hurt")
    ended = whole_cluster.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "finished", f"{ended.why} {ended.detail}\n{whole_cluster.describe(job)}"
    assert whole_cluster.differences(job, ids) == {}
    story = job.story()
    assert ended.master.term > 1 and {"phase", "ended"} <= {event["event"] for event in story}
    how = [event["how"] for event in story if event["event"] == "exited"]
    assert any("for lack of memory" in each for each in how) and any("by eviction" in each for each in how), how


@pytest.mark.soak
def test_servers_hand_over_when_a_node_is_drained_without_loss(whole_cluster, rng):
    ids = counting.draw(rng, 24_000)
    job = whole_cluster.submit(
        "drained",
        ids,
        workers=RoleWish(count=2),
        servers=RoleWish(count=2),
        data_workers="off",
        relaunches=50,
        checkpoints=CheckpointWish(every_s=1.0),
        kubernetes=wish(grace_s=60),
    )
    whole_cluster.until(job, lambda status: has_trained_and_saved(status) and status.roles.workers.alive == 2)
    victim = next(node for node, pods in whole_cluster.nodes().items() if any("server" in pod for pod in pods))
    with contextlib.suppress(TimeoutError):  # on a busy machine it goes on behind our back
        whole_cluster.kubelet.drain(victim)
    whole_cluster.until(job, lambda status: (status.roles.workers.alive, status.roles.servers.alive) == (2, 2))
    whole_cluster.hurry("drained")
    ended = whole_cluster.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "finished", f"{ended.why}\n{whole_cluster.describe(job)}"
    assert whole_cluster.differences(job, ids) == {}


@pytest.mark.soak
def test_pods_of_a_lost_node_are_recreated_elsewhere(whole_cluster, rng):
    ids = counting.draw(rng, 8_000)
    job = whole_cluster.submit(
        "lost",
        ids,
        workers=RoleWish(count=2),
        servers=RoleWish(count=2),
        data_workers="off",
        relaunches=50,
        checkpoints=CheckpointWish(every_s=1.0),
        kubernetes=wish(),
    )
    whole_cluster.until(job, lambda status: has_trained_and_saved(status) and status.roles.workers.alive == 2)
    nodes = whole_cluster.nodes()
    victim = next(node for node, pods in nodes.items() if "lost-master" not in pods and pods)
    whole_cluster.kubelet.kill_node(victim)
    whole_cluster.kubelet.remove_node(victim)
    whole_cluster.until(
        job,
        lambda status: status.roles.relaunches and (status.roles.workers.alive, status.roles.servers.alive) == (2, 2),
    )
    whole_cluster.hurry("lost")
    ended = whole_cluster.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "finished", f"{ended.why}\n{whole_cluster.describe(job)}"
    assert whole_cluster.differences(job, ids) == {}


@pytest.mark.soak
def test_unschedulable_pods_leave_a_smaller_job_that_reports_it(whole_cluster, rng):
    ids = counting.draw(rng, 12_000)
    job = whole_cluster.submit(
        "large",
        ids,
        workers=RoleWish(count=3, cpu=3.0),
        servers=RoleWish(count=1, cpu=0.2),
        data_workers="off",
        kubernetes=wish(pending_s=5.0),
    )
    status = whole_cluster.until(job, lambda status: status.roles.workers.wanted == 2 and status.samples)
    assert "1 worker fewer than wanted" in status.roles.lacks and "Insufficient cpu" in status.roles.lacks
    thing = job.read()
    degraded = next(each for each in thing["status"]["conditions"] if each["type"] == "Degraded")
    assert degraded["status"] == "True" and thing["status"]["message"] == status.roles.lacks
    whole_cluster.hurry("large")
    ended = whole_cluster.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "finished", f"{ended.why}\n{whole_cluster.describe(job)}"
    assert whole_cluster.differences(job, ids) == {}


@pytest.mark.soak
def test_lost_master_pod_without_a_volume_restarts_the_job(whole_cluster, rng):
    ids = counting.draw(rng, 4_000)
    job = whole_cluster.submit(
        "anew",
        ids,
        workers=RoleWish(count=1),
        servers=RoleWish(count=1),
        data_workers="off",
        kubernetes=KubernetesWish(pending_s=60.0, grace_s=5),
    )
    whole_cluster.until(job, lambda status: status.samples > 100)
    whole_cluster.delete("anew-master", grace_s=0)
    whole_cluster.until(job, lambda status: status.master.term > 1 and status.samples > 0)
    assert any(event["event"] == "journal_lost" for event in job.story())
    whole_cluster.hurry("anew")
    ended = whole_cluster.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "finished", f"{ended.why}\n{whole_cluster.describe(job)}"
    assert whole_cluster.differences(job, ids) == {}


@pytest.mark.soak
def test_job_stopped_by_its_spec_drains_and_reports_it(whole_cluster, rng):
    ids = counting.draw(rng, 8_000)
    job = whole_cluster.submit(
        "stopped", ids, workers=RoleWish(count=1), servers=RoleWish(count=1), data_workers="off", kubernetes=wish()
    )
    whole_cluster.until(job, lambda status: status.samples > 100)
    job.ask(messages.StopRequest("enough"))
    ended = whole_cluster.until(job, lambda status: status.phase.over, "its end")
    assert ended.phase == "stopped" and job.read()["status"]["phase"] == "Stopped"
    assert whole_cluster.pods("worker") == [] and whole_cluster.pods("server") == []
