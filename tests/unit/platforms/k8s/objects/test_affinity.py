"""Data workers go beside a trainer of their job, else where no other job's trainers use the network; or anywhere."""

import pytest

from springtide.domain.plan.scale_plan import PodWish
from springtide.platforms.k8s.objects import names, pods
from tests.unit.platforms.k8s.making import SITE, job

FEEDER = PodWish(role="data-worker", rank=0, cpu=1.0)


def selects(term, labels):
    """What the API server makes of match expressions."""
    for one in term["labelSelector"]["matchExpressions"]:
        within = labels.get(one["key"]) in one["values"]
        if within is not (one["operator"] == "In"):
            return False
    return True


def score(spec, neighbours):
    """What a scheduler adds for a node with these pods."""
    found = 0
    for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for one in spec["affinity"][kind][pods.PREFERRED]:
            assert one["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
            found += sign * one["weight"] * any(selects(one["podAffinityTerm"], labels) for labels in neighbours)
    return found


def test_a_trainer_of_its_job_comes_before_a_quiet_node_and_that_before_other_jobs_trainers():
    spec = pods.pod_of(job(), FEEDER, SITE)["spec"]
    mine = {names.JOB: "ctr", names.ROLE: "worker"}
    other, server = {names.JOB: "other", names.ROLE: "worker"}, {names.JOB: "other", names.ROLE: "server"}
    assert score(spec, [mine]) > score(spec, [mine, other]) > score(spec, []) == score(spec, [server])
    assert score(spec, []) > score(spec, [other])


@pytest.mark.parametrize("role", ["worker", "server"])
def test_other_roles_are_not_drawn_anywhere(role):
    assert "affinity" not in pods.pod_of(job(), PodWish(role=role, rank=0, cpu=1.0), SITE)["spec"]


def test_what_the_user_says_of_pods_and_nodes_stays_as_it_is():
    said = {"podAffinity": {}, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    spec = pods.pod_of(job(spec={"kubernetes": {"affinity": said}}), FEEDER, SITE)["spec"]
    assert spec["affinity"]["podAffinity"] == {} and spec["affinity"]["nodeAffinity"] == said["nodeAffinity"]
    assert pods.PREFERRED in spec["affinity"]["podAntiAffinity"]
