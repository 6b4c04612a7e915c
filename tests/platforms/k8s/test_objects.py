"""API server behaviour of objects: versions, generations, status, schemas, finalizers, selectors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, DEFINITIONS, PODS, ObjectKind
from tests import waiting
from tests.platforms.k8s import making
from tests.platforms.k8s.conftest import Cluster

SOON_S = 60.0


@asynccontextmanager
async def defined(client: Client) -> AsyncIterator[ObjectKind]:
    """A kind of its own, as long as it is needed."""
    body, kind = making.widgets()
    await client.create(DEFINITIONS, body)
    try:
        await waiting.soon(lambda: client.has(kind), "the kind")
        yield kind
    finally:
        await client.delete(DEFINITIONS, body["metadata"]["name"])


def test_update_of_an_old_version_is_refused(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        made = await client.create(CONFIG_MAPS, CONFIG_MAPS.body("a", data={"x": "1"}))
        newer = await client.update(CONFIG_MAPS, {**made, "data": {"x": "2"}})
        assert int(newer["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        with pytest.raises(errors.Conflict):
            await client.update(CONFIG_MAPS, {**made, "data": {"x": "3"}})
        version = {"resourceVersion": made["metadata"]["resourceVersion"]}
        with pytest.raises(errors.Conflict):
            await client.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"x": "3"}})
        same = await client.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}})
        assert same["metadata"]["resourceVersion"] == newer["metadata"]["resourceVersion"], "nothing changed"
        with pytest.raises(errors.AlreadyThere):
            await client.create(CONFIG_MAPS, CONFIG_MAPS.body("a"))

    cluster.run(work)


def test_each_kind_of_patch_is_applied(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        await client.create(CONFIG_MAPS, CONFIG_MAPS.body("a", data={"x": "1", "y": "2"}))
        merged = await client.patch(CONFIG_MAPS, "a", {"data": {"x": None, "z": "3"}})
        assert merged["data"] == {"y": "2", "z": "3"}
        await client.create(PODS, making.pod("p"))
        image = {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}
        changed = await client.patch(PODS, "p", image, how="strategic")
        assert changed["spec"]["containers"][0]["image"] == "other:1"
        assert changed["spec"]["containers"][0]["command"] == ["true"], "the rest of the container is as it was"

    cluster.run(work)


def test_custom_object_is_pruned_defaulted_and_validated(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        async with defined(client) as kind:
            made = await client.create(kind, kind.body("a", spec={"size": 2, "memory": "4Gi", "odd": True}))
            assert made["spec"] == {"size": 2, "memory": "4Gi", "colour": "red"}
            for wrong in ({"size": 0}, {"size": "2"}, {}, {"size": 1, "colour": "green"}, {"size": 1, "parts": [1]}):
                with pytest.raises(errors.ClusterRefused):
                    await client.create(kind, kind.body("b", spec=wrong))
            with pytest.raises(errors.ClusterRefused):
                await client.patch(kind, "a", {"spec": {"size": 10}})
            with pytest.raises(errors.ClusterRefused):
                await client.patch(kind, "a", {"spec": {"size": 3}}, how="strategic")

    cluster.run(work)


def test_status_changes_only_through_its_subresource_without_a_new_generation(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        async with defined(client) as kind:
            made = await client.create(kind, kind.body("a", spec={"size": 2}, status={"phase": "Made up"}))
            assert "status" not in made and made["metadata"]["generation"] == 1
            both = {"spec": {"size": 3}, "status": {"phase": "Running"}}
            told = await client.patch(kind, "a", both, subresource="status")
            assert (told["spec"]["size"], told["status"]["phase"]) == (2, "Running")
            assert told["metadata"]["generation"] == 1
            grown = await client.patch(kind, "a", {"spec": {"size": 3}, "status": {"phase": "Odd"}})
            assert (grown["spec"]["size"], grown["status"]["phase"]) == (3, "Running")
            assert grown["metadata"]["generation"] == 2
            labelled = await client.patch(kind, "a", {"metadata": {"labels": {"x": "y"}}})
            assert labelled["metadata"]["generation"] == 2

    cluster.run(work)


def test_finalizer_holds_an_object_until_it_is_removed(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        body = CONFIG_MAPS.body("a")
        body["metadata"]["finalizers"] = ["springtide.dev/hold"]
        await client.create(CONFIG_MAPS, body)
        await client.delete(CONFIG_MAPS, "a")
        held = await client.get(CONFIG_MAPS, "a")
        assert held["metadata"]["deletionTimestamp"]
        with pytest.raises(errors.ClusterRefused):
            await client.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": ["springtide.dev/hold", "a.dev/b"]}})
        await client.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})
        with pytest.raises(errors.NotFound):
            await client.get(CONFIG_MAPS, "a")

    cluster.run(work)


def test_lists_are_filtered_by_labels_and_name(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        for index in range(5):
            body = CONFIG_MAPS.body(f"m{index}")
            body["metadata"]["labels"] = {"number": str(index), "odd": str(index % 2)}
            await client.create(CONFIG_MAPS, body)

        async def names(labels: str = "", fields: str = "") -> list[str]:
            found = await client.list(CONFIG_MAPS, labels=labels, fields=fields)
            return [each["metadata"]["name"] for each in found.items]

        assert await names("odd=1") == ["m1", "m3"]
        assert await names("number in (0, 4),odd!=1") == ["m0", "m4"]
        assert await names("number,odd notin (0)") == ["m1", "m3"]
        assert await names(fields="metadata.name=m2") == ["m2"]
        with pytest.raises(errors.SpringtideError):
            await names(fields="spec.size=2")

    cluster.run(work)


def test_watch_reports_objects_entering_and_leaving_its_selection(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        changes = client.watch(CONFIG_MAPS, labels="take=yes")
        told: list[tuple[str, str]] = []

        async def read(count: int) -> None:
            async for change in changes:
                told.append((change.what, change.thing.get("metadata", {}).get("name", "")))
                if len(told) == count:
                    return

        for name, take in (("a", "yes"), ("b", "no")):
            body = CONFIG_MAPS.body(name)
            body["metadata"]["labels"] = {"take": take}
            await client.create(CONFIG_MAPS, body)
        await asyncio.wait_for(read(2), SOON_S)
        await client.patch(CONFIG_MAPS, "b", {"metadata": {"labels": {"take": "yes"}}})
        await client.patch(CONFIG_MAPS, "a", {"metadata": {"labels": {"take": "no"}}})
        await client.delete(CONFIG_MAPS, "b")
        await asyncio.wait_for(read(5), SOON_S)
        await changes.aclose()  # type: ignore[attr-defined]
        assert told == [("added", "a"), ("synced", ""), ("added", "b"), ("gone", "a"), ("gone", "b")]

    cluster.run(work)


def test_pod_has_the_servers_defaults_and_is_immutable(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        made = await client.create(PODS, making.pod("p"))
        assert made["status"]["phase"] == "Pending" and made["spec"]["terminationGracePeriodSeconds"] == 30
        accounts = cluster.server is not None or "serviceAccountName" in made["spec"]  # some servers run without
        if accounts:
            mounts = made["spec"]["containers"][0]["volumeMounts"]
            assert mounts[0]["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
        with pytest.raises(errors.ClusterRefused):
            await client.patch(PODS, "p", {"spec": {"restartPolicy": "Always"}})
        with pytest.raises(errors.ClusterRefused):
            await client.create(PODS, making.pod("q", containers=[{"name": "A_b", "image": "x"}]))
        if accounts:
            with pytest.raises(errors.ClusterRefused, match="service account"):
                await client.create(PODS, making.pod("r", serviceAccountName="nobody"))
        await client.delete(PODS, "p")
        with pytest.raises(errors.NotFound):
            await client.get(PODS, "p")

    cluster.run(work)
