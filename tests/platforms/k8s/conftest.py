"""The API server that this suite runs against: the one of `springtide.testing.kubernetes`, or a real one.

`SPRINGTIDE_TEST_KUBECONFIG` names the kubeconfig of a real one (`make test-k8s KUBECONFIG=...`). Every test has a
namespace of its own, which goes with it, and definitions of kinds are removed only if the test made them.
"""

import asyncio
import contextlib
import os
import pathlib
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from springtide import errors
from springtide.platforms.k8s.client import Client
from springtide.platforms.k8s.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEFINITIONS,
    NAMESPACES,
    NODES,
    PRIORITY_CLASSES,
    Kind,
)
from springtide.testing.kubernetes.server import ApiServer

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    """Where a test works: a kubeconfig, a namespace of its own, and the server if it is ours."""

    kubeconfig: pathlib.Path
    namespace: str
    server: ApiServer | None

    def run(self, work: Callable[[Client], Awaitable[Result]]) -> Result:
        """Do something with a client."""

        async def within() -> Result:
            async with Client.open(str(self.kubeconfig), namespace=self.namespace) as client:
                return await work(client)

        return asyncio.run(within())


OF_THE_CLUSTER = (DEFINITIONS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, PRIORITY_CLASSES, NODES)


@pytest.fixture(scope="session")
def real_kubeconfig() -> Iterator[str]:
    """A real cluster is left as it was found: what was made of it outside of namespaces goes, and nothing else."""
    path = os.environ.get("SPRINGTIDE_TEST_KUBECONFIG", "")
    before = asyncio.run(_of_ours(path)) if path else set()
    yield path
    if path:
        asyncio.run(_remove_all(path, asyncio.run(_of_ours(path)) - before))


async def _of_ours(path: str) -> set[tuple[Kind, str]]:
    async with Client.open(path) as client:
        return {
            (kind, item["metadata"]["name"])
            for kind in OF_THE_CLUSTER
            for item in (await client.list(kind)).items
            if "springtide" in item["metadata"]["name"]
        }


async def _remove_all(path: str, made: set[tuple[Kind, str]]) -> None:
    async with Client.open(path) as client:
        for kind, name in made:
            with contextlib.suppress(errors.NotFound):
                await client.delete(kind, name)


@pytest.fixture
def cluster(tmp_path: pathlib.Path, real_kubeconfig: str) -> Iterator[Cluster]:
    if real_kubeconfig:
        yield from _with_namespace(pathlib.Path(real_kubeconfig), None)
        return
    with ApiServer(tmp_path / "api-server") as server:
        yield from _with_namespace(server.kubeconfig, server)


def _with_namespace(kubeconfig: pathlib.Path, server: ApiServer | None) -> Iterator[Cluster]:
    found = Cluster(kubeconfig, f"springtide-test-{secrets.token_hex(4)}", server)
    found.run(lambda client: client.create(NAMESPACES, {"metadata": {"name": found.namespace}}))
    try:
        yield found
    finally:
        found.run(lambda client: _remove(client, found.namespace))


async def _remove(client: Client, namespace: str) -> Any:
    try:
        await client.delete(NAMESPACES, namespace)
    except errors.NotFound:
        return None


@pytest.fixture
def emulated(cluster: Cluster) -> ApiServer:
    """For what only a server that fails on purpose can show."""
    if cluster.server is None:
        pytest.skip("a real API server does not fail on purpose")
    return cluster.server
