"""Controller-manager decisions for a namespace without one."""

from springtide.platforms.k8s.api.kinds import CLAIMS, CONFIG_MAPS, DISRUPTION_BUDGETS, ELASTIC_JOBS, PODS
from springtide_lab.kubernetes.control import reconcile
from springtide_lab.kubernetes.control.reconcile import Count, Delete, Let

NODES = {"node-1"}


def make_object(name, *, owner="", holds=(), going=False, **fields):
    metadata = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": "1", "finalizers": list(holds)}
    if owner:
        metadata["ownerReferences"] = [{"uid": f"uid-{owner}"}]
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, **fields}


def decide(*there, leaving=False):
    return reconcile.decide(there, nodes=NODES, leaving=leaving)


def test_owned_object_is_deleted_with_its_owner():
    job, code = (ELASTIC_JOBS, make_object("job")), (CONFIG_MAPS, make_object("code", owner="job"))
    assert decide(job, code) == []
    assert decide(code) == [Delete(*code)]


def test_foreground_deletion_removes_owned_objects_first():
    owner, owned = (
        (CONFIG_MAPS, make_object("a", holds=("foregroundDeletion", "x/y"), going=True)),
        make_object("b", owner="a"),
    )
    assert decide(owner, (CONFIG_MAPS, owned)) == [Delete(CONFIG_MAPS, owned)]
    assert decide(owner) == [Let(*owner, ("x/y",))]


def test_pods_of_a_lost_node_are_force_deleted():
    here, lost = (make_object(node, spec={"nodeName": node}) for node in ("node-1", "node-2"))
    assert decide((PODS, here), (PODS, lost), (PODS, make_object("new", spec={}))) == [Delete(PODS, lost, 0)]


def test_claim_in_use_by_a_pod_is_kept():
    claim = (CLAIMS, make_object("c", holds=("kubernetes.io/pvc-protection",), going=True))
    user = make_object("p", spec={"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]})
    assert decide(claim, (PODS, user)) == []
    assert decide(claim) == [Let(*claim, ())]


def test_namespace_in_deletion_is_emptied():
    left, going = (CONFIG_MAPS, make_object("a")), (CONFIG_MAPS, make_object("b", going=True))
    assert decide(left, going, leaving=True) == [Delete(*left)]


def test_disruption_budget_is_counted_once():
    budget = make_object("b", spec={"minAvailable": 0, "selector": {"matchLabels": {}}})
    (step,) = decide((DISRUPTION_BUDGETS, budget))
    assert isinstance(step, Count) and step.status["disruptionsAllowed"] == 0
    assert decide((DISRUPTION_BUDGETS, {**budget, "status": step.status})) == []
