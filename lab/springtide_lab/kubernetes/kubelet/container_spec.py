"""What a container of a pod is started with: command, environment, volumes, limits, user.

In: the pod, and ConfigMaps, Secrets and tokens that it refers to. Out: a `Wish` for `containers`, and folders for its
volumes; `Missing` where something is not there yet: a kubelet reports CreateContainerConfigError and tries again.
"""

import base64
import os
import os.path
import pathlib
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from springtide.domain.core.resources import LEAST_MEMORY, ProcessLimits
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.kubelet.containers import PACKAGE, Mount, Wish
from springtide_lab.kubernetes.objects import selectors

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
_INDEXED = re.compile(r"(.*)\['([^']*)'\]")
Lookup = Callable[[str, str], Json | None]
"""(`configmaps` or `secrets`, name) to the object."""
DEFAULT_MODE = 0o644
TokenOf = Callable[[str, int], Awaitable[str]]
"""(Service account, seconds) to a token."""


class Missing(Exception):
    """Something that the pod refers to is not there."""


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
    argv = command(container, known)
    if not argv:
        raise Missing("no command specified: there is no image that could have one")
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
        groups=[*(context.get("supplementalGroups") or []), *([group] if group is not None else [])],
        read_only=bool(context.get("readOnlyRootFilesystem")),
    )


def image_env(api: tuple[str, int]) -> dict[str, str]:
    """What an image and a kubelet give every container: here `python` is this interpreter, with this package."""
    tools = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin"]
    return {
        "PATH": ":".join(tools),
        "PYTHONPATH": str(PACKAGE),
        "LANG": "C.UTF-8",
        "HOME": "/",
        "KUBERNETES_SERVICE_HOST": api[0],
        "KUBERNETES_SERVICE_PORT": str(api[1]),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(api[1]),
    }


def hostname(pod: Json) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _mounts(container: Json, volumes: Mapping[str, Mount]) -> Sequence[Mount]:
    found = []
    for wanted in sorted(container.get("volumeMounts") or [], key=lambda each: len(str(each["mountPath"]))):
        volume = volumes[wanted["name"]]
        source = volume.source / wanted["subPath"] if wanted.get("subPath") else volume.source
        if wanted.get("subPath") and not source.exists():
            source.mkdir(parents=True)
            source.chmod(0o777)
        read_only = volume.read_only or bool(wanted.get("readOnly"))
        target = os.path.normpath(wanted["mountPath"])
        found.append(replace(volume, source=source, target=target, read_only=read_only))
    return found


def limits_of(container: Json) -> ProcessLimits:
    """From its resources; no container gets less than an interpreter needs."""
    found = (container.get("resources") or {}).get("limits") or {}
    cpu, memory = found.get("cpu"), found.get("memory")
    return ProcessLimits(
        cpu=None if cpu is None else max(0.01, selectors.number(cpu)),
        memory=None if memory is None else max(LEAST_MEMORY, int(selectors.number(memory))),
    )


def references(pod: Json) -> set[tuple[str, str]]:
    """All ConfigMaps and Secrets that a pod needs, as (resource, name)."""
    found: set[tuple[str, str]] = set()

    def look(kind: str, wanted: Json) -> None:
        found.add(("configmaps" if kind == "configMap" else "secrets", wanted.get("name") or wanted["secretName"]))

    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
        for source in container.get("envFrom") or []:
            for key, wanted in source.items():
                if key.endswith("Ref"):
                    look(key.removesuffix("Ref"), wanted)
        for entry in container.get("env") or []:
            for key, wanted in (entry.get("valueFrom") or {}).items():
                if key in ("configMapKeyRef", "secretKeyRef"):
                    look(key.removesuffix("KeyRef"), wanted)
    for volume in pod["spec"].get("volumes") or []:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            for kind in ("configMap", "secret"):
                if kind in source:
                    look(kind, source[kind])
    return found


def variables(pod: Json, container: Json, lookup: Lookup) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        kind = "configMapRef" if "configMapRef" in source else "secretRef"
        for key, value in _data(kind.removesuffix("Ref"), source[kind], lookup).items():
            found[source.get("prefix", "") + key] = value.decode()
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value_from = _value(pod, container, entry["valueFrom"], lookup)
            if value_from is not None:
                found[entry["name"]] = value_from
        else:
            found[entry["name"]] = expand(str(entry.get("value", "")), found)
    return found


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as its value; unknown names stay, `$$` is one dollar."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return _REFERENCE.sub(one, text)


def command(container: Json, known: Mapping[str, str]) -> list[str]:
    """What is run: there is no image, so the pod must say it."""
    words: Sequence[str] = [*(container.get("command") or []), *(container.get("args") or [])]
    return [expand(word, known) for word in words]


def _value(pod: Json, container: Json, source: Json, lookup: Lookup) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource(pod, container, source["resourceFieldRef"])
    for kind in ("configMap", "secret"):
        if f"{kind}KeyRef" in source:
            wanted = source[f"{kind}KeyRef"]
            data = _data(kind, wanted, lookup)
            if wanted["key"] in data:
                return data[wanted["key"]].decode()
            if wanted.get("optional"):
                return None
            raise Missing(f"couldn't find key {wanted['key']} in {kind} {wanted['name']}")
    return None


def field(pod: Json, path: str) -> str:
    """The downward API: `metadata.labels['x']`, `status.podIP`, `spec.nodeName` ..."""
    if found := _INDEXED.fullmatch(path):
        return str((selectors.at_path(pod, found[1]) or {}).get(found[2], ""))
    value: Any = selectors.at_path(pod, path)
    if isinstance(value, dict):
        return "\n".join(f'{key}="{each}"' for key, each in sorted(value.items()))
    return "" if value is None else str(value)


def resource(pod: Json, container: Json, wanted: Json) -> str:
    """The downward API: limits and requests of a container, in units of `divisor`, rounded up."""
    name = wanted.get("containerName", container.get("name"))
    chosen = next((each for each in pod["spec"]["containers"] if each["name"] == name), container)
    part, _, key = wanted["resource"].partition(".")
    amount = ((chosen.get("resources") or {}).get(part) or {}).get(key)
    if amount is None:
        return "0"
    return str(-int(-selectors.number(amount) // selectors.number(wanted.get("divisor") or "1")))


def _data(kind: str, reference: Json, lookup: Lookup) -> dict[str, bytes]:
    found = lookup("configmaps" if kind == "configMap" else "secrets", reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise Missing(f'{kind.lower()} "{reference["name"]}" not found')
    return contents(found)


def contents(item: Json) -> dict[str, bytes]:
    if item.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the files of a pod are."""

    user: int | None = None
    """Of its containers, where all have the same."""
    group: int | None = None
    """`fsGroup`."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Makes them in `folder`; claims live in `claims`, shared by all pods."""

    folder: pathlib.Path
    claims: pathlib.Path
    lookup: Lookup
    token_of: TokenOf

    async def make(self, pod: Json) -> dict[str, Mount]:
        """All volumes by name; targets are filled in by container."""
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
        if "hostPath" in volume:
            path = pathlib.Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                raise Missing(f"hostPath type check failed: {path} is not a directory")
            return Mount(path, "")
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
            mode = 0o640 if owner.group is not None else 0o600 if owner.user is not None else mode
            _write(path / wanted["path"], token.encode(), mode, owner, to_user=True)
        elif kind == "downwardAPI":
            for item in wanted.get("items") or []:
                _write(path / item["path"], _downward(pod, item).encode(), item.get("mode", mode), owner)
        elif kind in ("secret", "configMap"):
            found = self.lookup("secrets" if kind == "secret" else "configmaps", wanted["name"])
            if found is None and not wanted.get("optional"):
                raise Missing(f'{kind.lower()} "{wanted["name"]}" not found')
            data = {} if found is None else contents(found)
            items = wanted.get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                if item["key"] in data:
                    _write(path / item["path"], data[item["key"]], item.get("mode", mode), owner)
                elif not wanted.get("optional"):
                    raise Missing(f"references non-existent {kind.lower()} key: {item['key']}")
        else:
            raise Missing(f"volumes of type {kind} are not to be had here")


def owner_of(pod: Json) -> Owner:
    context = pod["spec"].get("securityContext") or {}
    users = {
        (each.get("securityContext") or {}).get("runAsUser", context.get("runAsUser"))
        for each in pod["spec"]["containers"]
    }
    return Owner(users.pop() if len(users) == 1 else None, context.get("fsGroup"))


def _downward(pod: Json, item: Json) -> str:
    if "fieldRef" in item:
        return field(pod, item["fieldRef"]["fieldPath"])
    return resource(pod, {}, item["resourceFieldRef"])


def _folder(path: pathlib.Path, owner: Owner) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0 and owner.group is not None:
        os.chown(path, 0, owner.group)
    path.chmod(0o2777 if owner.group is not None else 0o777)


def _write(path: pathlib.Path, data: bytes, mode: int, owner: Owner, *, to_user: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if owner.group is not None:
        mode |= 0o440
    if os.getuid() == 0:
        os.chown(path, owner.user if to_user and owner.user is not None else 0, owner.group or 0)
    else:
        mode |= 0o400
    path.chmod(mode)
