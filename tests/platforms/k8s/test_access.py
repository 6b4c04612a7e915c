"""Access rights and ownership, equal on our API server and on a real one."""

import asyncio
import contextlib
import json
import pathlib
import time
from typing import Any

import pytest

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, PODS, ROLE_BINDINGS, ROLES, SECRETS, SERVICE_ACCOUNTS
from springtide_lab.kubernetes.api.server import ApiServer
from tests.platforms.k8s import making, operating
from tests.platforms.k8s.conftest import Cluster
from tests.waiting import soon


async def account(client: Client, cluster: Cluster, folder: pathlib.Path, rules: list[dict[str, Any]]) -> str:
    """The kubeconfig of an account that may do this."""
    await client.create(SERVICE_ACCOUNTS, SERVICE_ACCOUNTS.body("clerk"))
    await client.create(ROLES, ROLES.body("clerk", rules=rules))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "clerk"}
    subjects = [{"kind": "ServiceAccount", "name": "clerk", "namespace": cluster.namespace}]
    await client.create(ROLE_BINDINGS, ROLE_BINDINGS.body("clerk", roleRef=reference, subjects=subjects))
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    given = await client.post(SERVICE_ACCOUNTS, "clerk", "token", asked)
    config = operating.kubeconfig_with(cluster.kubeconfig, given["status"]["token"])
    (folder / "clerk.json").write_text(json.dumps(config))
    return str(folder / "clerk.json")


async def rbac_is_off(clerk: Client) -> bool:
    """Whether an account may do what it has no right to: the server runs without RBAC."""
    try:
        await clerk.list(SECRETS)
    except errors.Forbidden:
        return False
    return True


def test_account_may_do_what_its_role_allows_and_grant_no_more(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def work(client: Client) -> None:
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["mine"]},
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]},
        ]
        path = await account(client, cluster, tmp_path, rules)
        for name in ("mine", "yours"):
            await client.create(CONFIG_MAPS, CONFIG_MAPS.body(name))
        async with Client.open(path, namespace=cluster.namespace) as clerk:

            async def may_list() -> bool:
                with contextlib.suppress(errors.Forbidden):
                    await clerk.list(PODS)
                    return True
                return False

            await soon(may_list)
            if cluster.server is None and await rbac_is_off(clerk):
                pytest.skip("this API server lets everyone do everything")
            with pytest.raises(errors.Forbidden):
                await clerk.create(PODS, making.pod("p"))
            await clerk.get(CONFIG_MAPS, "mine")
            with pytest.raises(errors.Forbidden):
                await clerk.get(CONFIG_MAPS, "yours")
            await clerk.create(ROLES, ROLES.body("less", rules=rules[:1]))
            more = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
            with pytest.raises(errors.SpringtideError, match="not currently held"):
                await clerk.create(ROLES, ROLES.body("more", rules=more))

    cluster.run(work)


def test_owned_object_is_deleted_with_its_owner(cluster: Cluster) -> None:
    async def work(client: Client) -> None:
        owner = await client.create(CONFIG_MAPS, CONFIG_MAPS.body("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        for name in ("one", "two"):
            body = CONFIG_MAPS.body(name)
            body["metadata"]["ownerReferences"] = [{**reference, "blockOwnerDeletion": True}]
            await client.create(CONFIG_MAPS, body)
        await client.delete(CONFIG_MAPS, "owner", propagation="Foreground")

        async def none_left() -> bool:
            found = [each["metadata"]["name"] for each in (await client.list(CONFIG_MAPS)).items]
            return not {"owner", "one", "two"} & set(found)

        await soon(none_left)

    cluster.run(work)


def test_watch_continues_over_broken_connections_and_expired_history(cluster: Cluster, emulated: ApiServer) -> None:
    async def work(client: Client) -> None:
        told: list[str] = []

        async def read() -> None:
            async for change in client.watch(CONFIG_MAPS, labels="here"):
                told.append(change.thing.get("metadata", {}).get("name", change.what))

        reading = asyncio.create_task(read())
        await soon(lambda: "synced" in told)
        for index, trouble in enumerate((lambda: emulated.drop_watches(), lambda: emulated.compact())):
            trouble()
            emulated.faults.fail(429, times=1, verbs=("create",), resource="configmaps", retry_after_s=1)
            body = CONFIG_MAPS.body(f"m{index}")
            body["metadata"]["labels"] = {"here": ""}
            began = time.monotonic()
            await client.create(CONFIG_MAPS, body)
            assert time.monotonic() - began > 0.5, "it waited as it was told"
            emulated.drop_watches()
            await soon(lambda name=f"m{index}": name in told)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert told == ["synced", "m0", "m1"]

    cluster.run(work)
