import pytest

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.platforms.k8s.job import platform
from springtide.platforms.k8s.objects import pod_status

LIFE = Life(Role(RoleKind.WORKER, 1), 2)


def pod(phase="Running", *, code=None, reason="", taken="", deleted=False, waiting=None, conditions=()):
    state = {}
    if code is not None:
        state = {"terminated": {"exitCode": code, "reason": reason}}
    elif waiting:
        state = {"waiting": waiting}
    elif phase == "Running":
        state = {"running": {}}
    metadata = {"name": "ctr-worker-1-2"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    status = {"phase": phase, "containerStatuses": [{"state": state}], "conditions": list(conditions)}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status | ({"reason": taken} if taken else {})}


def ended(*args, asked=False, present=True, **kwargs):
    return platform.exit_of(pod(*args, **kwargs), LIFE, asked=asked, present=present)


def test_container_exit_codes_and_signals_map_to_role_exits():
    assert ended("Succeeded", code=0).clean
    assert (ended("Failed", code=3).code, ended("Failed", code=3).signal) == (3, "")
    killed = ended("Failed", code=143)
    assert (killed.code, killed.signal, killed.evicted, killed.incarnation) == (None, "SIGTERM", False, 2)


@pytest.mark.parametrize(
    "how", [{"code": 137}, {"code": 137, "reason": "OOMKilled"}, {"code": 1, "reason": "OOMKilled"}]
)
def test_kill_at_the_memory_limit_is_reported_as_out_of_memory(how):
    assert ended("Failed", **how).oom and not ended("Failed", **how).evicted


@pytest.mark.parametrize(
    "how",
    [
        {"taken": "Evicted"},
        {"taken": "Preempting", "code": 137},
        {"deleted": True, "code": 143},
        {"deleted": True, "code": 137},
        {"conditions": [{"type": "DisruptionTarget", "status": "True"}], "code": 137},
    ],
)
def test_pod_removed_by_the_cluster_counts_as_evicted_for_any_exit_status(how):
    found = ended("Failed", **how)
    assert found.evicted and not found.oom


def test_final_error_of_servers_and_data_workers_is_read_from_the_pod():
    failed = pod("Failed", code=1)
    failed["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = (
        'rt/x.py", line 3, in main\n    raise OSError("disk full")\nOSError: disk full\n'
        'Traceback (most recent call last):\n  File "y.py", line 1, in <module>\nOSError: disk is full\n'
    )
    for kind, error in ((RoleKind.SERVER, "OSError: disk is full"), (RoleKind.WORKER, "")):
        assert platform.exit_of(failed, Life(Role(kind, 0)), asked=False).error == error
    failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = 143
    assert not platform.exit_of(failed, Life(Role(RoleKind.SERVER, 0)), asked=False).error


def test_missing_pod_counts_as_evicted_unless_we_deleted_it():
    assert ended("Running", present=False).evicted
    assert ended("Failed").evicted  # its node is lost: nobody saw its end
    asked = ended("Running", present=False, asked=True)
    assert not asked.evicted and asked.signal == "SIGKILL"
    assert not ended("Failed", code=137, deleted=True, asked=True).oom


def test_running_pod_about_to_be_removed_is_detected():
    assert pod_status.why_evicted(pod()) == ""
    assert pod_status.why_evicted(pod(deleted=True))
    told = [{"type": "DisruptionTarget", "status": "True", "message": "preempted by a larger one"}]
    assert pod_status.why_evicted(pod(conditions=told)) == "preempted by a larger one"


def test_reason_for_an_absent_pod_is_the_clusters_own():
    unscheduled = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: Insufficient cpu"}]
    assert pod_status.why_absent(pod("Pending", conditions=unscheduled)) == "Unschedulable: 0/3 nodes: Insufficient cpu"
    image = {"reason": "ImagePullBackOff", "message": "no such image"}
    assert pod_status.why_absent(pod("Pending", waiting=image)) == "ImagePullBackOff: no such image"
    assert "operator" in pod_status.why_absent(None)
    assert pod_status.why_absent(None, "exceeded quota") == "exceeded quota"
    assert pod_status.process_started(pod()) and not pod_status.process_started(pod("Pending", waiting=image))


def test_sidecar_neither_hides_our_container_nor_blocks_its_end():
    ours = {"name": "worker", "state": {"terminated": {"exitCode": 3}}}
    sidecar = {"name": "istio-proxy", "state": {"running": {}}}
    pod = {
        "metadata": {"labels": {"springtide.dev/role": "worker"}},
        "spec": {"restartPolicy": "Never"},
        "status": {"phase": "Running", "containerStatuses": [sidecar, ours]},
    }
    assert pod_status.process_ended(pod) and platform.exit_of(pod, LIFE, asked=False).code == 3
    pod["status"]["containerStatuses"][1] = {"name": "worker", "state": {"running": {}}}
    assert not pod_status.process_ended(pod) and pod_status.process_started(pod)
