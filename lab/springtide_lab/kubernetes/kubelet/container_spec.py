"""Derive from a pod how to start a container: command, environment, volumes, limits, user.

In: the pod, and ConfigMaps, Secrets and tokens that it refers to. Out: a `Wish` for `containers`, and folders for its
volumes. `Missing` is raised if an object does not exist yet; the kubelet reports this in the pod's status and tries
again.
"""

import base64
import os
import os.path
import pathlib
import re
import sys
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from springtide.domain.core.resources import LEAST_MEMORY, ProcessLimits
from springtide.platforms.k8s.api.kinds import parse_quantity
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.kubelet.containers import PACKAGE, Mount, Wish

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
Lookup = Callable[[str, str], Json | None]
"""Function that returns the object for a resource (`configmaps` or `secrets`) and a name; None if there is no such
object.
"""
RESOURCES = {"configMap": "configmaps", "secret": "secrets"}
DEFAULT_MODE = 0o644
TokenOf = Callable[[str, int], Awaitable[str]]
"""Function that returns a token for a service account and a lifetime in seconds."""


class Missing(Exception):
    """An object that the pod refers to does not exist, or its configuration cannot work here."""


def wish_of(
    pod: Json,
    container: Json,
    *,
    env: Mapping[str, str],
    lookup: Lookup,
    mounts: Mapping[str, Mount],
    hosts: pathlib.Path,
    log: pathlib.Path,
) -> Wish:
    context = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    uid = int(context.get("runAsUser") or 0)
    if context.get("runAsNonRoot") and uid == 0:
        raise Missing("container has runAsNonRoot and image will run as root")
    known = {**env, **variables(pod, container, lookup)}
    argv = [expand(word, known) for word in [*(container.get("command") or []), *(container.get("args") or [])]]
    if not argv:
        raise Missing("no command specified: there is no image that could supply one")
    group = context.get("fsGroup")
    return Wish(
        name=f"{pod['metadata']['name']}-{container['name']}",
        argv=argv,
        env={"HOSTNAME": hostname(pod), **known},
        cwd=container.get("workingDir") or "/",
        hostname=hostname(pod),
        hosts=hosts,
        log=log,
        mounts=_mounts(container, mounts),
        limits=limits_of(container),
        uid=uid,
        gid=int(context.get("runAsGroup") or 0),
        groups=[] if group is None else [group],
        read_only=bool(context.get("readOnlyRootFilesystem")),
    )


def image_env(server: str) -> dict[str, str]:
    """Return the variables that an image and a kubelet set in every container; `python` is this interpreter."""
    url = urllib.parse.urlsplit(server)
    tools = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin"]
    return {
        "PATH": ":".join(tools),
        "PYTHONPATH": str(PACKAGE),
        "LANG": "C.UTF-8",
        "HOME": "/",
        "KUBERNETES_SERVICE_HOST": url.hostname or "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(url.port or 443),
    }


def hostname(pod: Json) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _mounts(container: Json, volumes: Mapping[str, Mount]) -> list[Mount]:
    found = []
    for wanted in sorted(container.get("volumeMounts") or [], key=lambda each: len(str(each["mountPath"]))):
        volume, target = volumes[wanted["name"]], os.path.normpath(wanted["mountPath"])
        found.append(replace(volume, target=target, read_only=volume.read_only or bool(wanted.get("readOnly"))))
    return found


def limits_of(container: Json) -> ProcessLimits:
    """Return the limits of a container, but at least what an interpreter needs."""
    found = (container.get("resources") or {}).get("limits") or {}
    cpu, memory = found.get("cpu"), found.get("memory")
    return ProcessLimits(
        cpu=None if cpu is None else max(0.01, parse_quantity(cpu)),
        memory=None if memory is None else max(LEAST_MEMORY, int(parse_quantity(memory))),
    )


def references(pod: Json) -> set[tuple[str, str]]:
    """Return all ConfigMaps and Secrets that a pod needs, as (resource, name)."""
    found: set[tuple[str, str]] = set()
    for container in pod["spec"]["containers"]:
        for source in container.get("envFrom") or []:
            found.update((RESOURCES[key.removesuffix("Ref")], wanted["name"]) for key, wanted in source.items())
    for volume in pod["spec"].get("volumes") or []:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            for kind in RESOURCES.keys() & source.keys():
                found.add((RESOURCES[kind], source[kind].get("name") or source[kind]["secretName"]))
    return found


def variables(pod: Json, container: Json, lookup: Lookup) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for key, wanted in source.items():
            data = contents(key.removesuffix("Ref"), wanted["name"], lookup)
            found |= {name: value.decode() for name, value in data.items()}
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            found[entry["name"]] = field(pod, entry["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            found[entry["name"]] = expand(str(entry.get("value", "")), found)
    return found


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value and `$$` by one dollar sign; unknown names stay."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return _REFERENCE.sub(one, text)


def field(pod: Json, path: str) -> str:
    """Return a field of the pod for the downward API, such as `status.podIP` or `metadata.namespace`."""
    value = pod
    for part in path.split("."):
        value = value[part]
    return str(value)


def contents(kind: str, name: str, lookup: Lookup) -> dict[str, bytes]:
    """Return the files of a `configMap` or `secret` by name."""
    item = lookup(RESOURCES[kind], name)
    if item is None:
        raise Missing(f'{kind.lower()} "{name}" not found')
    data = item.get("data") or {}
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    plain = {key: value.encode() for key, value in data.items()}
    return plain | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}


Owner = tuple[int | None, int | None]
"""User id of a pod's containers (None if they differ), and `fsGroup`."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Create a pod's volumes in `folder`; claims are folders in `claims`, shared by all pods."""

    folder: pathlib.Path
    claims: pathlib.Path
    lookup: Lookup
    token_of: TokenOf

    async def make(self, pod: Json) -> dict[str, Mount]:
        """Create all volumes; return them by name, without targets, which differ between containers."""
        found = {}
        for volume in pod["spec"].get("volumes") or []:
            path = self.folder / volume["name"]
            found[volume["name"]] = await self._one(pod, volume, path)
        return found

    async def _one(self, pod: Json, volume: Json, path: pathlib.Path) -> Mount:
        owner = owner_of(pod)
        if "emptyDir" in volume:
            _folder(path, owner)
            return Mount(path, "", in_memory=(volume["emptyDir"] or {}).get("medium") == "Memory")
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            path = self.claims / pod["metadata"]["namespace"] / claim["claimName"]
            _folder(path, owner)
            return Mount(path, "", read_only=bool(claim.get("readOnly")))
        path.mkdir(parents=True, exist_ok=True)
        if "projected" in volume:
            projected = volume["projected"]
            for source in projected.get("sources") or []:
                await self._files(pod, source, path, projected.get("defaultMode", DEFAULT_MODE), owner)
        else:
            name = next(key for key in volume if key != "name")
            source = volume[name]
            if name == "secret":
                source = {**source, "name": source["secretName"]}
            mode = source.get("defaultMode", DEFAULT_MODE)
            await self._files(pod, {name: source}, path, mode, owner)
        return Mount(path, "", read_only=True)

    async def _files(self, pod: Json, source: Json, path: pathlib.Path, mode: int, owner: Owner) -> None:
        kind, wanted = next(iter(source.items()))
        if kind == "serviceAccountToken":
            account = pod["spec"].get("serviceAccountName", "default")
            token = await self.token_of(account, wanted.get("expirationSeconds", 3600))
            mode = 0o640 if owner[1] is not None else 0o600 if owner[0] is not None else mode
            _write(path / wanted["path"], token.encode(), mode, owner, to_user=True)
        elif kind == "downwardAPI":
            for item in wanted.get("items") or []:
                _write(path / item["path"], field(pod, item["fieldRef"]["fieldPath"]).encode(), mode, owner)
        elif kind in RESOURCES:
            data = contents(kind, wanted["name"], self.lookup)
            for item in wanted.get("items") or [{"key": key, "path": key} for key in data]:
                if item["key"] not in data:
                    raise Missing(f"references non-existent {kind.lower()} key: {item['key']}")
                _write(path / item["path"], data[item["key"]], mode, owner)
        else:
            raise Missing(f"volumes of type {kind} are not to be had here")


def owner_of(pod: Json) -> Owner:
    context = pod["spec"].get("securityContext") or {}
    users = {
        (each.get("securityContext") or {}).get("runAsUser", context.get("runAsUser"))
        for each in pod["spec"]["containers"]
    }
    return users.pop() if len(users) == 1 else None, context.get("fsGroup")


def _folder(path: pathlib.Path, owner: Owner) -> None:
    path.mkdir(parents=True, exist_ok=True)
    _, group = owner
    if os.getuid() == 0 and group is not None:
        os.chown(path, 0, group)
    path.chmod(0o2777 if group is not None else 0o777)


def _write(path: pathlib.Path, data: bytes, mode: int, owner: Owner, *, to_user: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    user, group = owner
    if group is not None:
        mode |= 0o440
    if os.getuid() == 0:
        os.chown(path, user if to_user and user is not None else 0, group or 0)
    else:
        mode |= 0o400
    path.chmod(mode)
