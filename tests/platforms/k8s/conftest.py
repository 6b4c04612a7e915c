"""The API server that this suite runs against: the one of `springtide_lab.kubernetes`, or a real one.

`SPRINGTIDE_TEST_KUBECONFIG` names the kubeconfig of a real one (`make test-k8s KUBECONFIG=...`). Every test has a
namespace of its own, which goes with it, and definitions of kinds are removed only if the test made them. An API server
without a controller manager gets ours for these namespaces.
"""

import asyncio
import contextlib
import os
import pathlib
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pytest

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEFINITIONS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    ObjectKind,
)
from springtide_lab.kubernetes.api.server import ApiServer
from tests import waiting
from tests.platforms.k8s import controllers

Result = TypeVar("Result")

PREFIX = "springtide-test-"
LABELS = {"springtide.dev/test": "true", "pod-security.kubernetes.io/enforce": "privileged"}
"""Some pods of the tests would not pass a strict cluster's default; those of jobs must (`operating.installed`)."""
FURNISHED_S = 60.0
GONE_S = 120.0


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


OF_THE_CLUSTER = (DEFINITIONS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, NODES)


def pytest_report_header() -> str:
    path = os.environ.get("SPRINGTIDE_TEST_KUBECONFIG", "")
    if not path:
        return "kubernetes: the API server of springtide.testing (make test-k8s KUBECONFIG=FILE for a real one)"
    try:
        return f"kubernetes: {asyncio.run(_described(path))}"
    except errors.SpringtideError as error:
        pytest.exit(f"no API server to test against: {error}", returncode=2)


async def _described(path: str) -> str:
    async with Client.open(path) as client:
        return f"{client.access.server} {await client.version()}, {client.access.where}"


@pytest.fixture(scope="session", autouse=True)  # before any test, which must leave nothing behind
def real_kubeconfig() -> Iterator[str]:
    """Kubeconfig of a real cluster; objects that the test made outside namespaces are removed at the end."""
    path = os.environ.get("SPRINGTIDE_TEST_KUBECONFIG", "")
    if not path:
        yield ""
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever is asked to end cleans up as well
    before, alone = asyncio.run(_first_look(path))
    with controllers.Controllers(path, PREFIX) if alone else contextlib.nullcontext():
        try:
            yield path
        finally:
            asyncio.run(_remove_all(path, before))


async def _first_look(path: str) -> tuple[set[tuple[ObjectKind, str]], bool]:
    async with Client.open(path) as client:
        return await _of_ours(client), await controllers.is_missing(client)


async def _of_ours(client: Client) -> set[tuple[ObjectKind, str]]:
    return {
        (kind, item["metadata"]["name"])
        for kind in OF_THE_CLUSTER
        for item in (await client.list(kind)).items
        if "springtide" in item["metadata"]["name"]
    }


async def _remove_all(path: str, before: set[tuple[ObjectKind, str]]) -> None:
    """Delete namespaces first and wait: their objects need the definitions until then."""
    async with Client.open(path) as client:

        async def all_gone() -> bool:
            there = [each["metadata"] for each in (await client.list(NAMESPACES)).items]
            return not any(each["name"] in MADE and "deletionTimestamp" in each for each in there)

        with contextlib.suppress(AssertionError):
            await waiting.soon(all_gone, within_s=GONE_S, every_s=0.2)
        for kind, name in await _of_ours(client) - before:
            with contextlib.suppress(errors.NotFound):
                await client.delete(kind, name)


MADE: set[str] = set()
"""Namespaces of this run."""


@pytest.fixture
def cluster(tmp_path: pathlib.Path, real_kubeconfig: str) -> Iterator[Cluster]:
    if real_kubeconfig:
        yield from _with_namespace(pathlib.Path(real_kubeconfig), None)
        return
    with ApiServer(tmp_path / "api-server") as server:
        yield from _with_namespace(server.kubeconfig, server)


def _with_namespace(kubeconfig: pathlib.Path, server: ApiServer | None) -> Iterator[Cluster]:
    found = Cluster(kubeconfig, f"{PREFIX}{secrets.token_hex(4)}", server)
    MADE.add(found.namespace)
    try:
        found.run(lambda client: _furnished(client, found.namespace))
        yield found
    finally:
        found.run(lambda client: _remove(client, found.namespace))


async def _furnished(client: Client, namespace: str) -> None:
    """A namespace that was just made has its account and the server's certificate a little later."""
    await client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": LABELS}})

    async def is_there(kind: ObjectKind, name: str) -> bool:
        with contextlib.suppress(errors.NotFound):
            return bool(await client.get(kind, name))
        return False

    for kind, name in ((SERVICE_ACCOUNTS, "default"), (CONFIG_MAPS, "kube-root-ca.crt")):
        await waiting.soon(partial(is_there, kind, name), name, within_s=FURNISHED_S, every_s=0.05)


async def _remove(client: Client, namespace: str) -> None:
    """Force-delete pods: their nodes may already be gone."""
    for pod in (await client.list(PODS)).items:
        with contextlib.suppress(errors.NotFound):
            await client.delete(PODS, pod["metadata"]["name"], grace_s=0)
    with contextlib.suppress(errors.NotFound):
        await client.delete(NAMESPACES, namespace)


@pytest.fixture
def emulated(cluster: Cluster) -> ApiServer:
    """Our API server, for tests that need injected faults."""
    if cluster.server is None:
        pytest.skip("a real API server does not fail on purpose")
    return cluster.server
