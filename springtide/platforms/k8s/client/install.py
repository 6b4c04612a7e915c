"""Installs and uninstalls Springtide in a cluster, and checks the installation.

A second install updates existing objects, except secrets and namespaces. Jobs and definitions stay, unless the user
asks for their removal.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from springtide import errors
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import install_manifests

READY_S = 30.0


async def apply(client: Client, objects: list[Object], say: Callable[[str], None]) -> None:
    for body in objects:
        kind, name = kinds.kind_of(body), body["metadata"]["name"]
        try:
            await client.create(kind, body)
            say(f"{kind.kind} {name}: made")
        except errors.AlreadyThere:
            # do not replace existing values, because a new brain secret would lock out existing clients, and our pod
            # security standard may be too strict for other pods of the namespace.
            if kind in (kinds.SECRETS, kinds.NAMESPACES):
                say(f"{kind.kind} {name}: exists")
                continue
            patch = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
            await client.patch(kind, name, patch, namespace=body["metadata"].get("namespace", ""))
            say(f"{kind.kind} {name}: up to date")
    await served(client)


async def served(client: Client) -> None:
    async with asyncio.timeout(READY_S):
        while not all([await client.has(kind) for kind in (kinds.ELASTIC_JOBS, kinds.SCALE_PLANS)]):
            await asyncio.sleep(0.1)


async def remove(
    client: Client, objects: list[Object], say: Callable[[str], None], *, definitions: bool = False
) -> None:
    for body in reversed(objects):
        kind, name = kinds.kind_of(body), body["metadata"]["name"]
        if kind is kinds.NAMESPACES or (kind is kinds.DEFINITIONS and not definitions):
            say(f"{kind.kind} {name}: left")
            continue
        try:
            await client.delete(kind, name, namespace=body["metadata"].get("namespace", ""), propagation="Background")
            say(f"{kind.kind} {name}: deleted")
        except errors.NotFound:
            say(f"{kind.kind} {name}: did not exist")


@dataclass(frozen=True, slots=True)
class InstallCheck:
    """Result of one check."""

    what: str
    well: bool
    said: str


async def examine(client: Client, namespace: str) -> list[InstallCheck]:
    found = [InstallCheck("api server", True, f"{client.access.server} {await client.version()}".strip())]
    known = True
    for kind in (kinds.ELASTIC_JOBS, kinds.SCALE_PLANS):
        has = await client.has(kind)
        known = known and has
        found.append(InstallCheck(str(kind), has, "known" if has else "not known: springtide k8s install"))
    found.append(await deployment(client, install_manifests.OPERATOR, namespace, needed=True))
    found.append(await deployment(client, install_manifests.BRAIN, namespace, needed=False))
    resize = await client.has(kinds.PODS, "resize")
    effect = "pods can get other CPU and memory while they run" if resize else "pods are replaced if their sizes change"
    found.append(InstallCheck("in-place resize", True, effect))
    if known:
        jobs = (await client.list(kinds.ELASTIC_JOBS, everywhere=True)).items
        running = sum((job.get("status") or {}).get("phase") == "Running" for job in jobs)
        found.append(InstallCheck("jobs", True, f"{len(jobs)}, {running} of them running"))
    return found


async def deployment(client: Client, name: str, namespace: str, *, needed: bool) -> InstallCheck:
    what = name.removeprefix("springtide-")
    try:
        body = await client.get(kinds.DEPLOYMENTS, name, namespace=namespace)
    except errors.NotFound:
        finding = f"no Deployment {name} in {namespace}" + (
            ": springtide k8s install" if needed else "; masters plan without a brain"
        )
        return InstallCheck(what, not needed, finding)
    ready = (body.get("status") or {}).get("readyReplicas", 0)
    # wait for one ready brain only, because the other brains are standbys
    wanted = body["spec"].get("replicas", 1) if name == install_manifests.OPERATOR else 1
    image = body["spec"]["template"]["spec"]["containers"][0]["image"]
    hint = "" if ready >= wanted else f"; see kubectl -n {namespace} describe deployment {name}"
    return InstallCheck(what, ready >= wanted, f"{ready} of {wanted} ready, image {image}{hint}")
