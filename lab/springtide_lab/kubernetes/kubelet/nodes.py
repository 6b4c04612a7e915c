"""Manage the API's nodes on this machine: register, renew and lose them; write hosts files and serve logs.

In: names and sizes; requests that an API server forwards for `kubectl logs`. Out: Node objects, `/etc/hosts` of pods,
and `NodeServer` at `/containerLogs/NAMESPACE/POD/CONTAINER`. A lost node is marked at once instead of after minutes.
"""

import asyncio
import contextlib
import pathlib
import platform
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterable, Sequence

from aiohttp import web

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import LEASES, NODES, ObjectKind, timestamp
from springtide_lab.kubernetes.api import server
from springtide_lab.kubernetes.api.server import HOST
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control.reconcile import is_over, is_ready
from springtide_lab.kubernetes.control.scheduler import OWN_TAINT
from springtide_lab.kubernetes.kubelet.pod_lifecycle import PodLife
from springtide_lab.kubernetes.objects import selectors

DOMAIN = "cluster.local"
ENDPOINT_SLICES = ObjectKind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
LEASE_NAMESPACE = "kube-node-lease"
PODS_AT_MOST = 110
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
UNREACHABLE = "node.kubernetes.io/unreachable"
LOOK_S = 0.05
CHUNK = 1 << 16


def text(namespace: str, services: Iterable[Json], pods: Sequence[Json]) -> str:
    """Return the hosts file for pods of `namespace`."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for pod in pods:
        if pod["metadata"]["namespace"] == namespace and _address(pod):
            lines.append(f"{_address(pod)} {pod['spec'].get('hostname') or pod['metadata']['name']}")
    for service in services:
        where, name = service["metadata"]["namespace"], service["metadata"]["name"]
        for pod in pods:
            if pod["metadata"]["namespace"] != where or not _answers(service, pod):
                continue
            lines.append(f"{_address(pod)} {' '.join(_names(name, where, namespace))}")
            if pod["spec"].get("subdomain") == name and (host := pod["spec"].get("hostname")):
                lines.append(f"{_address(pod)} {' '.join(_names(f'{host}.{name}', where, namespace))}")
    return "\n".join(lines) + "\n"


def _names(name: str, where: str, seen_from: str) -> list[str]:
    names = [f"{name}.{where}.svc.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}"]
    return names + ([name] if where == seen_from else [])


def _address(pod: Json) -> str:
    return "" if is_over(pod) else str(pod.get("status", {}).get("podIP") or "")


def _answers(service: Json, pod: Json) -> bool:
    wanted = service["spec"].get("selector")
    if not wanted or not _address(pod):
        return False
    fits = selectors.by_structure({"matchLabels": wanted})(pod["metadata"].get("labels") or {})
    return fits and bool(is_ready(pod) or service["spec"].get("publishNotReadyAddresses"))


async def host_for(client: Client) -> str:
    """Return the address of this machine to which the API server can send requests for logs.

    A server with a local address may still run in a container, as kind's servers do. The endpoint then has the
    container's address.
    """
    theirs, own = towards(urllib.parse.urlsplit(client.access.server).hostname or HOST)
    if theirs == own:
        with contextlib.suppress(errors.SpringtideError, IndexError, KeyError):
            slices = await client.get(ENDPOINT_SLICES, "kubernetes", namespace="default")
            theirs, own = towards(slices["endpoints"][0]["addresses"][0])
    return HOST if theirs == own else own


def towards(host: str) -> tuple[str, str]:
    """Return the address of a host, and the source address of packets from this machine to that host. The function
    sends no packet.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 443, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(address[0]), str(probe.getsockname()[0])
    except OSError:
        return HOST, HOST


async def register(client: Client, name: str, cpu: float, memory: int, *, host: str, port: int) -> None:
    """Create a node, or take over a node of an earlier kubelet; raise BadInput for a real node."""
    body = NODES.body(name, spec={"taints": [{"key": OWN_TAINT, "effect": "NoSchedule"}]})
    body["metadata"]["labels"] = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURE,
        OWN_TAINT: "true",
    }
    try:
        await client.create(NODES, body)
    except errors.AlreadyThere:
        found = await client.get(NODES, name)
        if OWN_TAINT not in (found["metadata"].get("labels") or {}):
            raise errors.BadInput(f"node {name} is a real one of {client.access.server}: take another name") from None
    await client.patch(NODES, name, {"spec": {"taints": body["spec"]["taints"], "unschedulable": None}})
    await client.patch(NODES, name, {"status": _status(name, cpu, memory, host, port)}, subresource="status")
    await renew(client, name)


def _status(name: str, cpu: float, memory: int, host: str, port: int) -> Json:
    size = {"cpu": f"{round(cpu * 1000)}m", "memory": str(memory), "pods": str(PODS_AT_MOST)}
    return {
        "capacity": size,
        "allocatable": size,
        "conditions": [condition("True", "KubeletReady", "LocalKubelet is posting ready status")],
        "addresses": [{"type": "InternalIP", "address": host}],  # API servers would try to resolve a name
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }


def condition(status: str, reason: str, message: str) -> Json:
    now = timestamp(time.time())
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


async def renew(client: Client, name: str) -> None:
    """Renew a node's lease; a cluster treats a node without renewal as lost after 40 seconds."""
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": timestamp(time.time(), micro=True)}
    try:
        await client.patch(LEASES, name, {"spec": spec}, namespace=LEASE_NAMESPACE)
    except errors.NotFound:
        with contextlib.suppress(errors.NotFound, errors.AlreadyThere):  # the namespace may not exist yet
            await client.create(LEASES, LEASES.body(name, LEASE_NAMESPACE, spec=spec))


async def mark_lost(client: Client, name: str) -> None:
    """Mark a node as lost, as the node controller does when a node stops reporting."""
    lost = condition("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    await client.patch(NODES, name, {"status": {"conditions": [lost]}}, subresource="status", how="strategic")
    taints = [
        {"key": OWN_TAINT, "effect": "NoSchedule"},
        {"key": UNREACHABLE, "effect": "NoSchedule"},
        {"key": UNREACHABLE, "effect": "NoExecute"},
    ]
    await client.patch(NODES, name, {"spec": {"taints": taints}})


async def remove(client: Client, name: str) -> None:
    for kind, namespace in ((NODES, ""), (LEASES, LEASE_NAMESPACE)):
        with contextlib.suppress(errors.NotFound):
            await client.delete(kind, name, namespace=namespace)


class NodeServer:
    """Server for the logs of pods; `find` returns a pod by namespace and name."""

    def __init__(self, find: Callable[[str, str], PodLife | None], folder: pathlib.Path) -> None:
        self._find = find
        self._folder = folder
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = server.make_context(host, self._folder)
        await web.TCPSite(self._runner, host, 0, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        life = self._find(names["namespace"], names["pod"])
        if life is None:
            return web.Response(status=404, text=f'pod "{names["pod"]}" is not here')
        container = names["container"]
        path = life.log_of(container)
        if request.query.get("previous") in ("true", "1"):
            path = path.with_name(f"{int(path.stem) - 1}.log")
            if not path.exists():
                return web.Response(status=400, text=f'previous terminated container "{container}" not found')
        follow = request.query.get("follow") in ("true", "1")
        if not path.exists() and not follow:
            why = f'container "{container}" in pod "{names["pod"]}" is waiting to start: ContainerCreating'
            return web.Response(status=400, text=why)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        lines = request.query.get("tailLines")
        with contextlib.suppress(ConnectionError):  # the reader has disconnected
            await self._send(response, path, None if lines is None else int(lines), life if follow else None, container)
        return response

    async def _send(
        self, response: web.StreamResponse, path: pathlib.Path, lines: int | None, life: PodLife | None, container: str
    ) -> None:
        while not path.exists():
            if life is None or life.is_over(container):
                return
            await asyncio.sleep(LOOK_S)
        with open(path, "rb") as file:
            if lines is not None:
                file.seek(start_of_tail(path.read_bytes(), lines))
            while True:
                over = life is None or life.is_over(container)
                if chunk := file.read(CHUNK):
                    await response.write(chunk)
                elif over:
                    return
                else:
                    await asyncio.sleep(LOOK_S)


def start_of_tail(data: bytes, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin."""
    kept = data.splitlines(keepends=True)[-lines:] if lines > 0 else []
    return len(data) - sum(map(len, kept))
