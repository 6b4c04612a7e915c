import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.plan.scale_plan import PodWish
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.objects import job_objects, names, pods
from tests.unit.platforms.k8s.making import SITE, job

WORKER = PodWish(role="worker", rank=0, incarnation=1, cpu=1.5, memory=2 << 30)
SERVER = PodWish(role="server", rank=2, cpu=2.0, memory=1 << 30)


def environment(pod):
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def mounts(pod):
    (container,) = pod["spec"]["containers"]
    return {each["mountPath"]: each["name"] for each in container["volumeMounts"]}


def all_pods(given):
    return [pods.master_pod(given, SITE), pods.pod_of(given, WORKER, SITE), pods.pod_of(given, SERVER, SITE)]


def test_worker_pod_runs_the_script_and_finds_its_master_by_name():
    pod = pods.pod_of(job(spec={"script": "train.py", "arguments": ["--lr", "0.1"]}), WORKER, SITE)
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["name"] == "ctr-worker-0-1"
    assert container["command"] == ["python", "-m", "springtide.worker.runner", "train.py"]
    told = environment(pod)
    assert told["SPRINGTIDE_ARGUMENTS"] == '["--lr", "0.1"]'
    assert told["SPRINGTIDE_MASTER"] == "ctr-master.ctr.ads.svc:7700"
    assert told["SPRINGTIDE_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert (told["SPRINGTIDE_MEMBER"], told["SPRINGTIDE_INCARNATION"]) == ("worker-0", "1")
    assert told["OMP_NUM_THREADS"] == "2"
    assert container["resources"]["limits"] == {"cpu": "1500m", "memory": "2Gi"} == container["resources"]["requests"]


@pytest.mark.parametrize("asked", [{"workers": {"gpu": 1}}, {"quota": {"gpu": 4}}])
def test_only_workers_request_gpus_and_tolerate_gpu_nodes(asked):
    master, worker, server = all_pods(job(spec=asked))
    resources = worker["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in worker["spec"]["tolerations"]
    for pod in (master, server, *all_pods(job()), *all_pods(job(spec={"quota": {"gpu": 0}}))):
        assert "nvidia.com/gpu" not in str(pod)


def test_every_pod_has_the_variables_of_the_jobs_secrets():
    for pod in all_pods(job(spec={"kubernetes": {"environmentSecrets": ["keys", "more"]}})):
        (container,) = pod["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "keys"}}, {"secretRef": {"name": "more"}}]


def test_shipped_code_is_unpacked_before_the_role_starts():
    pod = pods.pod_of(job(annotations={names.CODE: "ctr-code"}), WORKER, SITE)
    (container,) = pod["spec"]["containers"]
    assert container["command"][:5] == ["python", "-m", pods.POD_MODULE, "run", "springtide.worker.runner"]
    assert {"name": "archive", "configMap": {"name": "ctr-code"}} in pod["spec"]["volumes"]
    assert mounts(pod)[names.ARCHIVE] == "archive"


def test_pods_are_unprivileged():
    for pod in all_pods(job()):
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == pods.USER
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["automountServiceAccountToken"] is False


def test_only_the_master_has_a_service_account():
    master, worker, server = all_pods(job())
    assert master["spec"]["serviceAccountName"] == "ctr-master" and mounts(master)[names.ACCOUNT] == "account"
    for pod in (worker, server):
        assert "serviceAccountName" not in pod["spec"] and names.ACCOUNT not in mounts(pod)


def test_role_sees_only_the_keys_of_its_own_kind():
    for pod, kind in zip(all_pods(job()), ("master", "worker", "server"), strict=True):
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "credentials"]
        keys = {item["key"] for item in volume["secret"]["items"]}
        assert {f"{kind}.crt", f"{kind}.key", "ca.crt", "secret"} <= keys
        assert "ca.key" not in keys and len([key for key in keys if key.endswith(".key")]) == 1


def test_without_tls_there_are_no_keys():
    pod = pods.pod_of(job(spec={"kubernetes": {"tls": False}}), WORKER, SITE)
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "credentials"]
    assert [item["key"] for item in volume["secret"]["items"]] == ["secret"]
    assert "SPRINGTIDE_TLS" not in environment(pod)


def test_pod_options_of_the_user_reach_all_pods():
    wish = {
        "priorityClass": "batch",
        "schedulerName": "volcano",
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "imagePullSecrets": ["registry"],
        "imagePullPolicy": "Always",
        "labels": {"team": "ads"},
        "annotations": {"note": "x"},
        "graceS": 7,
    }
    for pod in all_pods(job(spec={"image": "mine:2", "environment": {"A": "b"}, "kubernetes": wish})):
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert (spec["priorityClassName"], spec["schedulerName"]) == ("batch", "volcano")
        assert spec["nodeSelector"] == {"pool": "cpu"} and spec["affinity"] == {"nodeAffinity": {}}
        assert {"key": "spot", "operator": "Exists"} in spec["tolerations"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}] and mounts(pod)["/data"] == "data"
        assert (container["image"], container["imagePullPolicy"]) == ("mine:2", "Always")
        assert pod["metadata"]["labels"]["team"] == "ads" and pod["metadata"]["annotations"]["note"] == "x"
        assert spec["terminationGracePeriodSeconds"] == 7 and environment(pod)["A"] == "b"


def test_user_labels_and_variables_cannot_override_a_pods_identity():
    spec = {"environment": {"SPRINGTIDE_MEMBER": "worker-9"}, "kubernetes": {"labels": {names.JOB: "other"}}}
    for pod in all_pods(job(spec=spec)):
        assert pod["metadata"]["labels"][names.JOB] == "ctr"
        assert environment(pod)["SPRINGTIDE_MEMBER"] != "worker-9"


def test_pods_leave_a_lost_node_soon_unless_the_user_sets_otherwise():
    soon = pods.pod_of(job(), SERVER, SITE)["spec"]["tolerations"]
    assert {each["key"]: each["tolerationSeconds"] for each in soon} == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    said = pods.pod_of(job(spec={"kubernetes": {"tolerations": [own]}}), SERVER, SITE)["spec"]["tolerations"]
    assert [each["key"] for each in said].count("node.kubernetes.io/not-ready") == 1


def test_every_object_is_owned_by_the_job():
    spec = {"kubernetes": {"runVolume": {"size": "1Gi", "shared": True, "storageClass": "fast"}}}
    given = job(spec=spec)
    made = [thing for _, thing in job_objects.of_job(given)]
    made += [job_objects.budget(given, 3), job_objects.secret(given, {"secret": b"x"}), *all_pods(given)]
    for thing in made:
        (owner,) = thing["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u-1", True, False)
        assert thing["metadata"]["namespace"] == "ads" and thing["metadata"]["labels"][names.JOB] == "ctr"


def test_run_volume_is_mounted_by_the_master_and_by_all_if_shared():
    alone, shared = (
        job(spec={"kubernetes": {"runVolume": {"size": "1Gi"}}}),
        job(spec={"kubernetes": {"runVolume": {"claim": "mine", "shared": True}}}),
    )

    def run_volumes(given):
        return [next(each for each in pod["spec"]["volumes"] if each["name"] == "run") for pod in all_pods(given)]

    own = {"name": "run", "persistentVolumeClaim": {"claimName": "ctr-run"}}
    theirs = {"name": "run", "persistentVolumeClaim": {"claimName": "mine"}}
    scratch = {"name": "run", "emptyDir": {}}
    assert run_volumes(alone) == [own, scratch, scratch]
    assert run_volumes(shared) == [theirs] * 3
    assert job_objects.claim(alone)["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert not any(thing["kind"] == "PersistentVolumeClaim" for _, thing in job_objects.of_job(shared))


def test_master_may_create_nothing_and_change_no_pod():
    for rule in job_objects.rights(job())["rules"]:
        assert "create" not in rule["verbs"] and "delete" not in rule["verbs"] and "*" not in rule["verbs"]
        assert "secrets" not in rule["resources"]
        if "pods" in rule["resources"]:
            assert rule["verbs"] == ["get", "list", "watch"]


@pytest.mark.parametrize(("servers", "stay"), [(0, 0), (1, 0), (2, 1), (5, 4)])
def test_node_drains_evict_one_server_at_a_time(servers, stay):
    assert job_objects.budget(job(), servers)["spec"]["minAvailable"] == stay


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["worker", "server", "data-worker"]),
    st.integers(0, 9999),
    st.integers(0, 99999),
)
def test_pod_name_fits_a_label_and_its_labels_identify_the_role(name, role, rank, incarnation):
    entry = PodWish(role=role, rank=rank, incarnation=incarnation)
    pod = pods.pod_of(job(name), entry, SITE)
    assert len(pod["metadata"]["name"]) <= 63 and len(pod["spec"]["hostname"]) <= 63
    assert names.life_of(pod) == entry.life


@given(st.floats(0.01, 500), st.integers(1, 1 << 50))
def test_quantities_survive_formatting(cores, size):
    assert kinds.parse_quantity(kinds.cpu_quantity(cores)) == pytest.approx(cores, abs=0.0006)
    assert kinds.parse_quantity(kinds.memory_quantity(size)) == size


def test_invalid_quantity_is_refused():
    with pytest.raises(errors.BadInput, match="quantity 'lots'"):
        kinds.parse_quantity("lots")


def test_job_labels_and_annotations_reach_its_pods_except_tool_metadata():
    marks = {"team": "ads", "cost.example.com/center": "7", "app.kubernetes.io/instance": "other", "note": "job"}
    own = {"kubectl.kubernetes.io/last-applied-configuration": "{}", names.CODE: "", "owner": "me"}
    given = job(labels=marks, annotations=own, spec={"kubernetes": {"labels": {"note": "pod"}}})
    for pod in all_pods(given):
        labels = pod["metadata"]["labels"]
        assert (labels["team"], labels["cost.example.com/center"], labels["note"]) == ("ads", "7", "pod")
        assert labels["app.kubernetes.io/instance"] == "ctr"
        assert set(pod["metadata"]["annotations"]) & set(own) == {"owner"}


def test_unlimited_pod_does_not_use_every_core_of_its_node():
    told = environment(pods.pod_of(job(), replace(WORKER, cpu=None), SITE))
    assert told["OMP_NUM_THREADS"] == "4"
    own = job(spec={"environment": {"OMP_NUM_THREADS": "16"}})
    assert environment(pods.pod_of(own, replace(WORKER, cpu=None), SITE))["OMP_NUM_THREADS"] == "16"


def test_only_the_master_mounts_the_brain_certificates():
    site = dataclasses.replace(SITE, brain="springtide-brain:7790", brain_tls=True)
    master = pods.master_pod(job(), site)
    assert environment(master)["SPRINGTIDE_BRAIN_TLS"] == names.BRAIN_TLS
    assert mounts(master)[names.BRAIN_TLS] == "brain-tls"
    (volume,) = [each for each in master["spec"]["volumes"] if each["name"] == "brain-tls"]
    assert volume["secret"]["secretName"] == job_objects.brain_certificates(job(), {})["metadata"]["name"]
    own_brain = pods.master_pod(job(spec={"brain": "mine:1"}), site)
    for pod in (pods.pod_of(job(), WORKER, site), own_brain, pods.master_pod(job(), SITE)):
        assert names.BRAIN_TLS not in mounts(pod) and "SPRINGTIDE_BRAIN_TLS" not in environment(pod)


FEEDER = PodWish(role="data-worker", rank=0, cpu=1.0)


def selects(term, labels):
    """What the API server makes of match expressions."""
    for one in term["labelSelector"]["matchExpressions"]:
        within = labels.get(one["key"]) in one["values"]
        if within is not (one["operator"] == "In"):
            return False
    return True


def score(spec, neighbours):
    """A scheduler's preference score for a node with these pods."""
    found = 0
    for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for one in spec["affinity"][kind][pods.PREFERRED]:
            assert one["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
            found += sign * one["weight"] * any(selects(one["podAffinityTerm"], labels) for labels in neighbours)
    return found


def test_data_worker_prefers_its_trainers_node_then_quiet_nodes():
    spec = pods.pod_of(job(), FEEDER, SITE)["spec"]
    mine = {names.JOB: "ctr", names.ROLE: "worker"}
    other, server = {names.JOB: "other", names.ROLE: "worker"}, {names.JOB: "other", names.ROLE: "server"}
    assert score(spec, [mine]) > score(spec, [mine, other]) > score(spec, []) == score(spec, [server])
    assert score(spec, []) > score(spec, [other])


@pytest.mark.parametrize("role", ["worker", "server"])
def test_other_roles_have_no_node_preference(role):
    assert "affinity" not in pods.pod_of(job(), PodWish(role=role, rank=0, cpu=1.0), SITE)["spec"]


def test_user_affinity_is_kept():
    said = {"podAffinity": {}, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    spec = pods.pod_of(job(spec={"kubernetes": {"affinity": said}}), FEEDER, SITE)["spec"]
    assert spec["affinity"]["podAffinity"] == {} and spec["affinity"]["nodeAffinity"] == said["nodeAffinity"]
    assert pods.PREFERRED in spec["affinity"]["podAntiAffinity"]
