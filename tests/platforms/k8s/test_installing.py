"""Install, look, upgrade, take out: as `springtide k8s` does it."""

from springtide.platforms.k8s import installing, kinds, manifests
from springtide.platforms.k8s.client import Client
from tests.platforms.k8s.conftest import Cluster


def test_what_was_installed_is_found_can_be_installed_again_and_goes(cluster: Cluster) -> None:
    plan = manifests.Plan(
        image="springtide:1", namespace=cluster.namespace, only=cluster.namespace, database="postgresql://b:pw@db/b",
        brain_secret="ab", brain_capacity="64",
    )  # fmt: skip
    objects = [body for body in manifests.everything(plan) if body["kind"] != "Namespace"]

    async def work(client: Client) -> None:
        said: list[str] = []
        await installing.apply(client, objects, said.append)
        assert len(said) == len(objects)
        found = {each.what: each for each in await installing.examine(client, cluster.namespace)}
        assert found["elasticjobs.springtide.dev"].well and not found["operator"].well
        assert found["operator"].said.startswith("0 of 1 ready")
        newer = {**objects[-1]}
        newer["spec"] = {**newer["spec"], "replicas": 0}
        said.clear()
        await installing.apply(client, [*objects[:-1], newer], said.append)
        assert said[-1] == "Deployment springtide-operator: up to date"
        assert (await client.get(kinds.DEPLOYMENTS, "springtide-operator"))["spec"]["replicas"] == 0
        assert f"Secret {manifests.BRAIN}: is there" in said
        await installing.remove(client, objects, said.append)
        assert (await client.list(kinds.DEPLOYMENTS)).items == []
        assert await client.has(kinds.ELASTIC_JOBS), "jobs are users' own"

    cluster.run(work)


def test_a_cluster_without_us_is_told_apart(cluster: Cluster) -> None:
    async def work(client: Client) -> list[installing.Finding]:
        return await installing.examine(client, cluster.namespace)

    found = {each.what: each for each in cluster.run(work)}
    assert found["api server"].well
    if cluster.server is not None:
        assert not found["elasticjobs.springtide.dev"].well
    assert "springtide k8s install" in found["operator"].said
