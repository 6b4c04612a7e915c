"""An installed Springtide for the tests of this folder: its operator runs here, with the rights it would have there."""

import asyncio
import base64
import json
import pathlib
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

from springtide.platforms.k8s.api import kinds, kubeconfig
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.client import install
from springtide.platforms.k8s.objects import install_manifests
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator import process
from tests.platforms.k8s.conftest import Cluster

SITE = Site(image="springtide:test", scheduler="springtide-local")


async def installed(client: Client, cluster: Cluster, folder: pathlib.Path, *, everywhere: bool = False) -> str:
    """The kubeconfig of the operator's own account, which may do what its role says and no more; `everywhere`: in all
    namespaces."""
    strict = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await client.patch(kinds.NAMESPACES, cluster.namespace, strict)  # all pods from here on are ours
    plan = install_manifests.InstallPlan(
        image="springtide:test", namespace=cluster.namespace, only="" if everywhere else cluster.namespace
    )
    objects = [body for body in install_manifests.everything(plan) if body["kind"] not in ("Namespace", "Deployment")]
    await install.apply(client, objects, lambda _: None)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    given = await client.post(kinds.SERVICE_ACCOUNTS, install_manifests.OPERATOR, "token", asked)
    path = folder / "operator.kubeconfig"
    path.write_text(json.dumps(kubeconfig_with(cluster.kubeconfig, given["status"]["token"])))
    return str(path)


def kubeconfig_with(path: pathlib.Path, token: str) -> Object:
    """A kubeconfig for another account of the same cluster."""
    read = [(path, kubeconfig.load(path))]
    _, chosen = kubeconfig.entry(read, "contexts", "context", read[0][1].get("current-context", ""))
    _, cluster = kubeconfig.entry(read, "clusters", "cluster", chosen["cluster"])
    if authority := kubeconfig.content(cluster, "certificate-authority", path.parent):
        cluster = {**cluster, "certificate-authority-data": base64.b64encode(authority).decode()}
        cluster.pop("certificate-authority", None)
    return {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": token}}],
    }


class Operator:
    """An operator in its own thread and event loop, as in a process of its own."""

    def __init__(self, cluster: Cluster, kubeconfig: str, *, everywhere: bool = False, brainy: bool = False) -> None:
        """`brainy`: the cluster has a brain with TLS."""
        spaces = () if everywhere else (cluster.namespace,)
        site = replace(SITE, brain="springtide-brain:7790", brain_tls=True) if brainy else SITE
        self._options = process.OperatorOptions(
            site=site,
            namespaces=spaces,
            kubeconfig=kubeconfig,
            brain_secret="ab" if brainy else "",
            brain_files={"ca.crt": b"a", "tls.crt": b"b", "tls.key": b"c"} if brainy else {},
        )
        self._up, self._trouble = threading.Event(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="operator")

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._task = asyncio.create_task(process.run(self._options, self._stop, self._up.set))
        try:
            await self._task
        except asyncio.CancelledError:
            pass
        except Exception as trouble:
            self._trouble = trouble
        finally:
            self._up.set()
            await asyncio.sleep(0.1)  # aiohttp ends TLS connections a moment after their session

    def kill(self) -> None:
        """Kill the operator at any point."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    async def __aenter__(self) -> "Operator":
        self._thread.start()
        await asyncio.to_thread(self._up.wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._thread.join)
        if self._trouble is not None:
            raise self._trouble


async def submit(client: Client, name: str = "ctr", **spec: Any) -> Object:
    """A job."""
    body = kinds.ELASTIC_JOBS.body(name, spec={"script": "train.py", **spec})
    return await client.create(kinds.ELASTIC_JOBS, body)


async def plan(client: Client, *pods: Object, kill: tuple[str, ...] = (), name: str = "ctr") -> None:
    """The scale plan a master would write."""
    body = {"spec": {"pods": list(pods), "kill": list(kill)}}
    await client.patch(kinds.SCALE_PLANS, name, body)


async def names(client: Client) -> set[str]:
    """Of all pods."""
    return {each["metadata"]["name"] for each in (await client.list(kinds.PODS)).items}


async def mark(client: Client, pod: str, phase: str, **status: Any) -> None:
    """Set the status of a pod as a kubelet would."""
    await client.patch(kinds.PODS, pod, {"status": {"phase": phase, **status}}, subresource="status")


async def finish_deletion(client: Client, pod: str) -> None:
    """Finish the deletion of a pod as a kubelet does once it has ended."""
    with suppress(Exception):
        await client.delete(kinds.PODS, pod, grace_s=0)


async def status_of(client: Client, name: str = "ctr") -> Object:
    """Of a job."""
    return (await client.get(kinds.ELASTIC_JOBS, name)).get("status") or {}


async def plan_status(client: Client, name: str = "ctr") -> Object:
    """Of its master's plan."""
    return (await client.get(kinds.SCALE_PLANS, name)).get("status") or {}
