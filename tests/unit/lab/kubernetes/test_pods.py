"""Hosts files, environments and statuses that pods and users see."""

import pytest

from springtide_lab.kubernetes.api.status_errors import Refused
from springtide_lab.kubernetes.kubelet import container_spec, nodes, pod_lifecycle
from springtide_lab.kubernetes.kubelet.pod_lifecycle import State
from springtide_lab.kubernetes.objects import selectors


def test_service_names_resolve_to_their_pods():
    service = {
        "metadata": {"name": "ctr", "namespace": "n"},
        "spec": {"selector": {"job": "ctr"}, "publishNotReadyAddresses": True},
    }
    pod = {
        "metadata": {"name": "ctr-master", "namespace": "n", "labels": {"job": "ctr"}},
        "spec": {"hostname": "ctr-master", "subdomain": "ctr"},
        "status": {"podIP": "127.8.0.1", "phase": "Running"},
    }
    lines = nodes.text("n", [service], [pod]).splitlines()
    assert "127.8.0.1 ctr.n.svc.cluster.local ctr.n.svc ctr.n ctr" in lines
    assert "127.8.0.1 ctr-master.ctr.n.svc.cluster.local ctr-master.ctr.n.svc ctr-master.ctr.n ctr-master.ctr" in lines
    over = {**pod, "status": {**pod["status"], "phase": "Failed"}}
    assert "127.8.0.1" not in nodes.text("n", [service], [over])


def test_variables_may_refer_to_each_other_and_to_the_pod():
    pod = {"metadata": {"name": "p"}, "spec": {"containers": []}, "status": {"podIP": "1.2.3.4"}}
    container = {
        "name": "m",
        "env": [
            {"name": "A", "value": "x"},
            {"name": "B", "value": "$(A)-$$(A)-$(NONE)"},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
    }
    found = container_spec.variables(pod, container, lambda *_: None)
    assert found == {"A": "x", "B": "x-$(A)-$(NONE)", "C": "1.2.3.4"}
    container["envFrom"] = [{"secretRef": {"name": "s"}}]
    with pytest.raises(container_spec.Missing, match='secret "s" not found'):
        container_spec.variables(pod, container, lambda *_: None)


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ([State(name="a")], "Pending"),
        ([State(name="a", started_at=1.0)], "Running"),
        ([State(name="a", started_at=1.0, ended_at=2.0)], "Succeeded"),
        ([State(name="a", started_at=1.0, ended_at=2.0, code=1)], "Failed"),
        ([State(name="a", started_at=1.0, ended_at=2.0, code=1), State(name="b", started_at=1.0)], "Running"),
        ([State(name="a", started_at=1.0, ended_at=2.0, code=1).again("CrashLoopBackOff", "")], "Running"),
    ],
)
def test_pod_phase_follows_from_its_containers(states, phase):
    assert pod_lifecycle.phase("Never", states) == phase


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Always", 0, "Running"),
        ("Always", 3, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 3, "Running"),
    ],
)
def test_pod_with_a_restarting_container_is_not_finished(policy, code, phase):
    ended = State(name="main", image="x", waiting="", started_at=1.0, ended_at=2.0, code=code)
    assert pod_lifecycle.phase(policy, [ended]) == phase


def test_selectors_match_their_labels():
    fits = selectors.by_labels("a=1,b!=2,c in (x, y),d,!e")
    assert fits({"a": "1", "c": "x", "d": ""}) and not fits({"a": "1", "c": "x", "d": "", "e": ""})


def test_objects_can_be_selected_by_name_and_no_other_field():
    assert selectors.chosen_name("metadata.name=ctr") == "ctr" and selectors.chosen_name("") == ""
    for other in ("spec.odd=1", "metadata.name!=ctr", "spec.nodeName=n,metadata.name=ctr"):
        with pytest.raises(Refused, match="field label not supported"):
            selectors.chosen_name(other)


def test_log_tail_begins_at_a_line():
    assert [nodes.start_of_tail(b"a\nbb\nc\n", count) for count in (0, 1, 2, 9)] == [7, 5, 2, 0]
