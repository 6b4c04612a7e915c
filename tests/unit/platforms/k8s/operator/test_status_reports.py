from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.plan.scale_plan import PlanStatus, PodState
from springtide.domain.spec import schema
from springtide.platforms.k8s.objects import job_objects
from springtide.platforms.k8s.operator import status_reports
from springtide.platforms.k8s.operator.job_view import capacity_for
from tests.unit.platforms.k8s import making

KEYS = st.sampled_from("abc")
JSON = st.recursive(st.integers(0, 3), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=3)


def merged(old, patch):
    """As RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


@given(OBJECTS, OBJECTS)
def test_merge_patch_turns_one_object_into_the_other(old, new):
    assert merged(old, job_objects.merge_patch(old, new)) == new


def test_removed_pods_leave_the_plan_status_and_foreign_fields_stay():
    old = PlanStatus(phase="Applied", pods={"a": PodState(phase="Running"), "b": PodState(phase="Running")})
    new = PlanStatus(phase="Applied", pods={"a": PodState(phase="Running")})
    before = {**schema.plain_of(old), "masters": "own words"}
    assert status_reports.plan_patch(before, new) == {"pods": {"b": None}}
    assert status_reports.plan_patch(before, old) is None
    assert job_objects.plan_status({"status": before}) == old


def test_status_message_names_the_first_few_pods_not_running():
    states = {f"w{n}": PodState(phase="Pending", why="Unschedulable: 0/3 nodes") for n in range(5)}
    said = status_reports.pods_message({**states, "s": PodState(phase="Running")})
    assert said.startswith("1 of 6 pods run; w0 Pending (Unschedulable: 0/3 nodes)") and said.endswith("and 2 more")
    assert status_reports.pods_message({"s": PodState(phase="Running")}) == ""


def node(name, cpu, memory, *, taints=(), gpus=0, **labels):
    status = {"allocatable": {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}, "status": status}


def test_usable_nodes_follow_the_jobs_selector_and_tolerations():
    spot = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
    soft = {"key": "busy", "effect": "PreferNoSchedule"}
    nodes = [
        node("a", "4", "16Gi", pool="cpu"),
        node("b", "7500m", "32Gi", pool="cpu", taints=[spot]),
        node("c", "64", "1Ti", pool="gpu"),
        node("d", "2", "8Gi", pool="cpu", taints=[soft]),
    ]
    here = {"nodeSelector": {"pool": "cpu"}}
    plain = capacity_for(making.job(spec={"kubernetes": here}), nodes)
    assert plain == {"cpu": 6.0, "memory": 24 << 30, "node_cpu": 4.0, "node_memory": 16 << 30, "gpus": None}
    bears = {**here, "tolerations": [{"key": "spot", "operator": "Equal", "value": "yes"}]}
    assert capacity_for(making.job(spec={"kubernetes": bears}), nodes)["cpu"] == 13.5
    anything = {"tolerations": [{"operator": "Exists"}]}
    assert capacity_for(making.job(spec={"kubernetes": anything}), nodes)["cpu"] == 77.5
    assert capacity_for(making.job(), [])["cpu"] is None


def test_gpu_job_may_use_nodes_reserved_for_gpus():
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    nodes = [node("a", "4", "16Gi"), node("b", "8", "32Gi", gpus=4, taints=[taint]), node("c", "8", "32Gi", gpus=2)]
    assert capacity_for(making.job(), nodes)["gpus"] == 2
    assert capacity_for(making.job(spec={"workers": {"gpu": 1}}), nodes)["gpus"] == 6
