"""Nodes of the API that stand for this machine: made, kept alive, marked, taken away.

In: names and sizes. Out: Node objects as a kubelet registers them, and what a cluster's controllers do to one that is
lost, at once instead of after minutes.
"""

import contextlib
import platform
import time

from springtide import errors
from springtide.platforms.k8s.client import Client
from springtide.platforms.k8s.kinds import LEASES, NODES
from springtide.testing.kubernetes.lifecycle import stamp
from springtide.testing.kubernetes.placing import OWN_TAINT
from springtide.testing.kubernetes.statuses import Json

HOST = "127.0.0.1"
LEASE_NAMESPACE = "kube-node-lease"
PODS_AT_MOST = 110
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
UNREACHABLE = "node.kubernetes.io/unreachable"


async def register(client: Client, name: str, cpu: float, memory: int, port: int) -> None:
    """Make a node, or take over one that an earlier kubelet left."""
    body = NODES.body(name, spec={"taints": [{"key": OWN_TAINT, "effect": "NoSchedule"}]})
    body["metadata"]["labels"] = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURE,
        "springtide.dev/local-kubelet": "true",
    }
    with contextlib.suppress(errors.AlreadyThere):
        await client.create(NODES, body)
    await client.patch(NODES, name, {"spec": {"taints": body["spec"]["taints"], "unschedulable": None}})
    await client.patch(NODES, name, {"status": _status(name, cpu, memory, port)}, subresource="status")
    await renew(client, name)


def _status(name: str, cpu: float, memory: int, port: int) -> Json:
    size = {"cpu": f"{round(cpu * 1000)}m", "memory": str(memory), "pods": str(PODS_AT_MOST)}
    return {
        "capacity": size,
        "allocatable": size,
        "conditions": [condition("True", "KubeletReady", "LocalKubelet is posting ready status")],
        "addresses": [{"type": "InternalIP", "address": HOST}],  # a name would be asked for by API servers
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": ARCHITECTURE, "operatingSystem": "linux", "osImage": "local", "machineID": name,
            "kernelVersion": platform.release(), "kubeletVersion": "v1.34.0+springtide", "bootID": name,
            "systemUUID": name, "containerRuntimeVersion": "local://1", "kubeProxyVersion": "",
        },
    }  # fmt: skip


def condition(status: str, reason: str, message: str) -> Json:
    """Whether a node is ready."""
    now = stamp(time.time())
    return {
        "type": "Ready", "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }  # fmt: skip


async def renew(client: Client, name: str) -> None:
    """Say that a node lives: without it a cluster takes it for lost after 40 seconds."""
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": stamp(time.time())[:-1] + ".000000Z"}
    try:
        await client.patch(LEASES, name, {"spec": spec}, namespace=LEASE_NAMESPACE)
    except errors.NotFound:
        with contextlib.suppress(errors.NotFound, errors.AlreadyThere):  # servers have that namespace a moment later
            await client.create(LEASES, LEASES.body(name, LEASE_NAMESPACE, spec=spec))


async def mark_lost(client: Client, name: str) -> None:
    """What the node controller does to a node that it hears nothing of."""
    lost = condition("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    await client.patch(NODES, name, {"status": {"conditions": [lost]}}, subresource="status", how="strategic")
    taints = [
        {"key": OWN_TAINT, "effect": "NoSchedule"},
        {"key": UNREACHABLE, "effect": "NoSchedule"},
        {"key": UNREACHABLE, "effect": "NoExecute"},
    ]
    await client.patch(NODES, name, {"spec": {"taints": taints}})


async def remove(client: Client, name: str) -> None:
    """Take a node away, and its lease."""
    for kind, namespace in ((NODES, ""), (LEASES, LEASE_NAMESPACE)):
        with contextlib.suppress(errors.NotFound):
            await client.delete(kind, name, namespace=namespace)
