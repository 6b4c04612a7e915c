"""The volumes of a pod as folders: secrets, config maps, the downward API, tokens, claims, empty folders.

In: the pod, and a way to look up and to ask for tokens. Out: a folder (or a file's place) a volume, with the modes and
owners that a kubelet gives them; `environment.Missing` where something is not there yet.
"""

import os
import pathlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.kubelet import environment
from springtide_lab.kubernetes.kubelet.containers import Mount
from springtide_lab.kubernetes.kubelet.environment import Lookup, Missing

DEFAULT_MODE = 0o644
TokenOf = Callable[[str, int], Awaitable[str]]
"""(Service account, seconds) to a token."""


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
            data = {} if found is None else environment.contents(found)
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
        return environment.field(pod, item["fieldRef"]["fieldPath"])
    return environment.resource(pod, {}, item["resourceFieldRef"])


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
