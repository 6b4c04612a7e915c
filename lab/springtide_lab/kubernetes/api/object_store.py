"""All objects of the API, in memory, each change numbered; lists, and the events of watches.

In: whole objects from `object_lifecycle`; the query of a request. Out: pages of objects, `Feed`s of events. The number
of the last change is the `resourceVersion`; a version that is no longer remembered is `Refused` with 410.
"""

import asyncio
import base64
import copy
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.paths import Target
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import selectors
from springtide_lab.kubernetes.objects.kinds import Kind

Key = tuple[str, str]
"""Namespace (empty for kinds of the whole cluster) and name."""
REMEMBERED = 2000  # changes a resource: a watch that resumes from before them must list again


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object."""

    version: int
    type: str
    """ADDED, MODIFIED or DELETED."""
    key: Key
    now: Json
    before: Json | None


class Store:
    """Objects by resource. Only its own event loop's thread may use it. Objects in it are never changed in place."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.version = 1
        self._remembered = remembered
        self._objects: dict[str, dict[Key, Json]] = {}
        self._history: dict[str, deque[Change]] = {}
        self._forgotten: dict[str, int] = {}
        self._followers: dict[str, list[Callable[[Change], None]]] = {}
        self.after_change: list[Callable[[str, Change], None]] = []
        """Called with the resource and each change, after its followers: what the server's own loops do."""

    def get(self, resource: str, key: Key) -> Json | None:
        """An object, or None."""
        return self._objects.get(resource, {}).get(key)

    def all(self, resource: str, namespace: str | None = None) -> list[Json]:
        """Objects in the order of their keys, of one namespace or of all."""
        found = self._objects.get(resource, {})
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def resources(self) -> list[str]:
        return [resource for resource, found in self._objects.items() if found]

    def put(self, resource: str, key: Key, item: Json) -> Json:
        """Add or replace an object; as it is kept, with its new version."""
        before = self.get(resource, key)
        return self._commit(resource, "ADDED" if before is None else "MODIFIED", key, item, before)

    def drop(self, resource: str, key: Key, last: Json | None = None) -> Json:
        """Remove an object; its last state, with the version of its end."""
        before = self._objects[resource][key]
        return self._commit(resource, "DELETED", key, before if last is None else last, before)

    def drop_resource(self, resource: str) -> None:
        for key in list(self._objects.get(resource, {})):
            self.drop(resource, key)

    def since(self, resource: str, version: int) -> list[Change]:
        """Changes after a version; 410 where they are no longer known."""
        if version < self._forgotten.get(resource, 0):
            raise status_errors.gone(f"too old resource version: {version} ({self._forgotten[resource]})")
        if version > self.version:
            raise status_errors.Refused(
                504,
                "Timeout",
                f"Too large resource version: {version}, current: {self.version}",
                details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
                retry_after_s=1,
            )
        return [change for change in self._history.get(resource, ()) if change.version > version]

    def at(self, resource: str, version: int) -> dict[Key, Json]:
        """The objects of a resource as they were at a version."""
        then = dict(self._objects.get(resource, {}))
        for change in reversed(self.since(resource, version)):
            if change.before is None:
                then.pop(change.key, None)
            else:
                then[change.key] = change.before
        return then

    def compact(self) -> None:
        """Forget all history: whoever resumes from before now gets 410."""
        self.version += 1
        for resource in [*self._history, *self._objects]:
            self._forgotten[resource] = self.version
            self._history.get(resource, deque()).clear()

    def follow(self, resource: str, tell: Callable[[Change], None]) -> Callable[[], None]:
        """Tell of every change from now on, until the returned function is called."""
        followers = self._followers.setdefault(resource, [])
        followers.append(tell)
        return lambda: followers.remove(tell) if tell in followers else None

    def entries(self) -> Iterator[tuple[str, Key]]:
        for resource, found in self._objects.items():
            for key in list(found):
                yield resource, key

    def _commit(self, resource: str, type_: str, key: Key, item: Json, before: Json | None) -> Json:
        self.version += 1
        kept = copy.deepcopy(item)
        kept["metadata"]["resourceVersion"] = str(self.version)
        objects = self._objects.setdefault(resource, {})
        if type_ == "DELETED":
            del objects[key]
        else:
            objects[key] = kept
        change = Change(self.version, type_, key, kept, before)
        history = self._history.setdefault(resource, deque())
        history.append(change)
        while len(history) > self._remembered:
            self._forgotten[resource] = history.popleft().version
        for tell in list(self._followers.get(resource, ())):
            tell(change)
        for after in self.after_change:
            after(resource, change)
        return kept


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: list[Json]
    version: int
    following: str = ""
    remaining: int = 0

    def as_list(self, kind: Kind) -> Json:
        """As it is sent: items of built-in kinds without their kind, as servers do."""
        meta: Json = {"resourceVersion": str(self.version)}
        if self.following:
            meta |= {"continue": self.following, "remainingItemCount": self.remaining}
        return {
            "kind": kind.list_kind or f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": meta,
            "items": self.items if kind.custom else [_bare(item) for item in self.items],
        }


def _bare(item: Json) -> Json:
    return {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}


def page(store: Store, target: Target, query: Mapping[str, str], *, behind: int = 0) -> Page:
    """Return all objects, or `limit` of them and a token for the rest, as they were `behind` changes ago."""
    kind, version, start = target.kind, max(1, store.version - behind), ("", "")
    if text := query.get("continue"):
        version, start = _read_token(text)
    elif query.get("resourceVersionMatch") == "Exact":
        version = int(query["resourceVersion"])
    if version != store.version:
        objects = store.at(kind.resource, version)
    else:
        objects = {_key(each): each for each in store.all(kind.resource)}
    fits = selectors.choose(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    found = [
        (key, as_version(kind, objects[key]))
        for key in sorted(objects)
        if key > start and (not target.namespace or key[0] == target.namespace) and fits(objects[key])
    ]
    limit = int(query.get("limit") or 0)
    if not limit or len(found) <= limit:
        return Page([item for _, item in found], version)
    token = base64.urlsafe_b64encode(json.dumps([version, *found[limit - 1][0]]).encode()).decode()
    return Page([item for _, item in found[:limit]], version, token, len(found) - limit)


def _key(item: Json) -> Key:
    return (item["metadata"].get("namespace", ""), item["metadata"]["name"])


def _read_token(text: str) -> tuple[int, Key]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(text))
    except ValueError as error:
        raise status_errors.bad_request("continue key is not valid") from error
    return int(version), (namespace, name)


def as_version(kind: Kind, item: Json) -> Json:
    """All versions of a custom kind share their objects; each shows its own name."""
    return item if item["apiVersion"] == kind.api_version else {**item, "apiVersion": kind.api_version}


class Feed:
    """The events of one watch. `events` fills up as things happen; `close` when nobody reads it any more."""

    def __init__(self, store: Store, target: Target, query: Mapping[str, str]) -> None:
        self.events: asyncio.Queue[Json | None] = asyncio.Queue()
        self.target = target
        self._fits = selectors.choose(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        self._store = store
        text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        initial = query.get("sendInitialEvents") == "true"
        if initial and match != "NotOlderThan":
            raise status_errors.bad_request("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        if not initial and text not in ("", "0"):
            try:
                missed = store.since(target.kind.resource, int(text))
            except ValueError as error:
                raise status_errors.bad_request(f"resourceVersion: Invalid value: {text!r}") from error
            for change in missed:
                self._tell(change)
        else:
            for item in store.all(target.kind.resource, target.namespace or None):
                if self._chosen(item):
                    self._send("ADDED", item)
            if initial:
                self.bookmark({"k8s.io/initial-events-end": "true"})
        self.close = store.follow(target.kind.resource, self._tell)

    def drop(self) -> None:
        self.events.put_nowait(None)

    def bookmark(self, annotations: dict[str, str] | None = None) -> None:
        """Say how far this watch is, though nothing of interest happened."""
        kind = self.target.kind
        meta: Json = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        body = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
        self.events.put_nowait({"type": "BOOKMARK", "object": body})

    def _chosen(self, item: Json | None) -> bool:
        if item is None:
            return False
        here = not self.target.namespace or item["metadata"].get("namespace") == self.target.namespace
        named = not self.target.name or item["metadata"]["name"] == self.target.name
        return here and named and self._fits(item)

    def _tell(self, change: Change) -> None:
        was, is_ = self._chosen(change.before), change.type != "DELETED" and self._chosen(change.now)
        if is_:
            self._send("MODIFIED" if was else "ADDED", change.now)
        elif was:
            gone = change.now if change.type == "DELETED" else dict(change.before or {})
            meta = {**gone["metadata"], "resourceVersion": str(change.version)}
            self._send("DELETED", {**gone, "metadata": meta})

    def _send(self, type_: str, item: Json) -> None:
        self.events.put_nowait({"type": type_, "object": as_version(self.target.kind, item)})
