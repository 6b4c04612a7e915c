"""Install, inspect, upgrade and remove with `springtide k8s`."""

import pytest

from springtide import errors
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.client import install
from springtide.platforms.k8s.objects import crds, install_manifests
from tests.platforms.k8s.conftest import Cluster


def test_installation_is_found_repeatable_and_removable(cluster: Cluster) -> None:
    plan = install_manifests.InstallPlan(
        image="springtide:1",
        namespace=cluster.namespace,
        only=cluster.namespace,
        database="postgresql://b:pw@db/b",
        brain_secret="ab",
        brain_capacity="64",
        brain_files={"ca.crt": b"a", "brain.crt": b"b", "brain.key": b"c"},
    )
    objects = [body for body in install_manifests.everything(plan) if body["kind"] != "Namespace"]

    async def work(client: Client) -> None:
        said: list[str] = []
        await install.apply(client, objects, said.append)
        assert len(said) == len(objects)
        found = {each.what: each for each in await install.examine(client, cluster.namespace)}
        assert found["elasticjobs.springtide.dev"].well and not found["operator"].well
        assert found["operator"].said.startswith("0 of 1 ready")
        newer = {**objects[-1]}
        newer["spec"] = {**newer["spec"], "replicas": 0}
        said.clear()
        await install.apply(client, [*objects[:-1], newer], said.append)
        assert said[-1] == "Deployment springtide-operator: up to date"
        assert (await client.get(kinds.DEPLOYMENTS, "springtide-operator"))["spec"]["replicas"] == 0
        assert f"Secret {install_manifests.BRAIN}: exists" in said
        assert f"Secret {install_manifests.BRAIN_TLS}: exists" in said, (
            "masters know the certificates that were made first"
        )
        await install.remove(client, objects, said.append)
        assert (await client.list(kinds.DEPLOYMENTS)).items == []
        assert await client.has(kinds.ELASTIC_JOBS), "jobs are users' own"

    cluster.run(work)


def test_existing_namespace_is_left_unchanged(cluster: Cluster) -> None:
    plan = install_manifests.InstallPlan(image="springtide:1", namespace=cluster.namespace)

    async def work(client: Client) -> None:
        before = await client.get(kinds.NAMESPACES, cluster.namespace)
        said: list[str] = []
        await install.apply(client, [install_manifests.namespace(plan), *crds.all_definitions()], said.append)
        assert said[0] == f"Namespace {cluster.namespace}: exists"
        after = await client.get(kinds.NAMESPACES, cluster.namespace)
        assert after["metadata"].get("labels") == before["metadata"].get("labels")

    cluster.run(work)


def test_cluster_without_springtide_is_recognized(cluster: Cluster) -> None:
    async def work(client: Client) -> list[install.InstallCheck]:
        return await install.examine(client, cluster.namespace)

    found = {each.what: each for each in cluster.run(work)}
    assert found["api server"].well
    if cluster.server is not None:
        assert not found["elasticjobs.springtide.dev"].well
    assert "springtide k8s install" in found["operator"].said


REFUSED = [
    ({"script": "other.py"}, "script cannot change"),
    ({"arguments": ["--more"]}, "arguments cannot change"),
    ({"workers": {"count": 2, "min": 1}}, "count beside min or max"),
    ({"workers": {"min": 3, "max": 2}}, "min must not be above max"),
    ({"stopped": False}, "cannot start again"),
]


def test_validation_rules_of_the_definitions_hold(cluster: Cluster) -> None:
    """They are in CEL, which only a real API server evaluates."""
    if cluster.server is not None:
        pytest.skip("rules in CEL need a real API server")

    async def work(client: Client) -> None:
        await install.apply(client, crds.all_definitions(), lambda _: None)
        job = kinds.ELASTIC_JOBS.body("ctr", spec={"script": "train.py", "stopped": True})
        await client.create(kinds.ELASTIC_JOBS, job)
        for spec, word in REFUSED:
            with pytest.raises(errors.ClusterRefused, match=word):
                await client.patch(kinds.ELASTIC_JOBS, "ctr", {"spec": spec})
        allowed = {"workers": {"min": 2, "max": 8}, "environment": {"A": "b"}, "dataWorkers": 2}
        await client.patch(kinds.ELASTIC_JOBS, "ctr", {"spec": allowed})
        for name in ("x" * 41, "9lives", "a.b"):
            with pytest.raises(errors.ClusterRefused):
                await client.create(kinds.ELASTIC_JOBS, kinds.ELASTIC_JOBS.body(name, spec={"script": "t.py"}))
        plan = {"job": "ctr", "pods": [{"role": "worker", "rank": 0}]}
        with pytest.raises(errors.ClusterRefused, match="for masters"):
            await client.create(kinds.SCALE_PLANS, kinds.SCALE_PLANS.body("mine", spec=plan))
        with pytest.raises(errors.ClusterRefused, match="named like its job"):
            spec = {"job": "ctr", "origin": "master"}
            await client.create(kinds.SCALE_PLANS, kinds.SCALE_PLANS.body("mine", spec=spec))
        await client.create(kinds.SCALE_PLANS, kinds.SCALE_PLANS.body("mine", spec={"job": "ctr", "workers": 3}))

    cluster.run(work)
