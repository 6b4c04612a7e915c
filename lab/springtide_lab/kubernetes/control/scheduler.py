"""Puts pods on nodes through the API: binds, makes room, says why not.

In: the pods and nodes of a `View`. Decided by `placing`. Out: bindings, evictions of lower priority, the condition
`PodScheduled`. Pods that name another scheduler are left alone.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CLAIMS, PODS
from springtide_lab.kubernetes.api.object_lifecycle import stamp
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control import pod_placement
from springtide_lab.kubernetes.kubelet import pod_status


class Scheduler:
    """One round at a time; `name` is what pods must ask for."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._told: dict[str, str] = {}

    async def round(self, pods: Mapping[tuple[str, str], Json], nodes: Mapping[str, Json]) -> None:
        mine = [pod for pod in pods.values() if self._is_mine(pod)]
        pending = [pod for pod in mine if not pod["spec"].get("nodeName") and not is_leaving(pod)]
        placed = [pod for pod in pods.values() if pod["spec"].get("nodeName") in nodes]
        decided = pod_placement.place(pending, placed, list(nodes.values()))
        for pod, node in decided.bind:
            await self._bind(pod, node)
        for victim, winner in decided.victims:
            await self._preempt(victim, winner)
        for pod, why in decided.nowhere:
            await self._tell(pod, why)

    def _is_mine(self, pod: Json) -> bool:
        return bool(pod["spec"].get("schedulerName") == self._name and not pod["spec"].get("schedulingGates"))

    async def _bind(self, pod: Json, node: str) -> None:
        meta = pod["metadata"]
        if not await self._has_claims(pod):
            return
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.post(PODS, meta["name"], "binding", body, namespace=meta["namespace"])

    async def _has_claims(self, pod: Json) -> bool:
        """Claims are bound when the first pod needs them, as storage of a node is."""
        for volume in pod["spec"].get("volumes") or []:
            if "persistentVolumeClaim" not in volume:
                continue
            name, namespace = volume["persistentVolumeClaim"]["claimName"], pod["metadata"]["namespace"]
            try:
                claim = await self._client.get(CLAIMS, name, namespace=namespace)
            except errors.NotFound:
                await self._tell(pod, f'persistentvolumeclaim "{name}" not found')
                return False
            if claim.get("status", {}).get("phase") != "Bound":
                size = claim["spec"].get("resources", {}).get("requests", {})
                status = {"phase": "Bound", "capacity": size, "accessModes": claim["spec"].get("accessModes", [])}
                await self._client.patch(CLAIMS, name, {"status": status}, namespace=namespace, subresource="status")
        return True

    async def _preempt(self, victim: Json, winner: Json) -> None:
        meta, name = victim["metadata"], self._name
        why = f"{name}: preempting to accommodate a higher priority pod {winner['metadata']['name']}"
        entry = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": why,
            "lastTransitionTime": stamp(time.time()),
        }
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.patch(
                PODS,
                meta["name"],
                {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [entry]}},
                namespace=meta["namespace"],
                subresource="status",
                how="strategic",
            )
            await self._client.delete(PODS, meta["name"], namespace=meta["namespace"], uid=meta["uid"])

    async def _tell(self, pod: Json, why: str) -> None:
        meta = pod["metadata"]
        if self._told.get(meta["uid"]) == why:
            return
        before = (pod.get("status") or {}).get("conditions") or []
        entry = pod_status.timed({"PodScheduled": (False, "Unschedulable")}, before, time.time())[0] | {"message": why}
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.patch(
                PODS,
                meta["name"],
                {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [entry]}},
                namespace=meta["namespace"],
                subresource="status",
                how="strategic",
            )
            self._told[meta["uid"]] = why


def is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or (pod.get("status") or {}).get("phase") in (
        "Succeeded",
        "Failed",
    )


async def pause_until(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
