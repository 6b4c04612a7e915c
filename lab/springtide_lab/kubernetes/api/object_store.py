"""Store all objects of the API in memory, number each change, and serve lists and watches.

In: whole objects from `object_lifecycle`; the query of a request. Out: lists of objects, `Feed`s of events. The number
of the last change is the `resourceVersion`. A request for a version that is no longer stored is `Refused` with 410.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.paths import Target
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import selectors

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""
REMEMBERED = 2000  # changes stored per resource; a watch that resumes from an older version must list again


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object."""

    version: int
    type: str
    """Kind of change: ADDED, MODIFIED or DELETED."""
    key: Key
    now: Json
    before: Json | None


class Store:
    """Objects by resource. Only the server's event loop may use it. Objects are never changed in place."""

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[str, dict[Key, Json]] = {}
        self._history: dict[str, deque[Change]] = {}
        self._forgotten: dict[str, int] = {}
        self._followers: dict[str, list[Callable[[Change], None]]] = {}
        self.after_change: list[Callable[[str, Change], None]] = []
        """Callbacks of the server's controllers, called with the resource and each change after the followers."""

    def get(self, resource: str, key: Key) -> Json | None:
        return self._objects.get(resource, {}).get(key)

    def all(self, resource: str, namespace: str | None = None) -> list[Json]:
        """Return the objects of one namespace or of all, in the order of their keys."""
        found = self._objects.get(resource, {})
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def put(self, resource: str, key: Key, item: Json) -> Json:
        """Add or replace an object; return it as stored, with its new version."""
        before = self.get(resource, key)
        return self._commit(resource, "ADDED" if before is None else "MODIFIED", key, item, before)

    def drop(self, resource: str, key: Key, last: Json | None = None) -> Json:
        """Remove an object; return its last state, with the version of the removal."""
        before = self._objects[resource][key]
        return self._commit(resource, "DELETED", key, before if last is None else last, before)

    def drop_resource(self, resource: str) -> None:
        for key in list(self._objects.get(resource, {})):
            self.drop(resource, key)

    def since(self, resource: str, version: int) -> list[Change]:
        """Return the changes after a version; raise Refused (410) if they are no longer stored."""
        if version < self._forgotten.get(resource, 0):
            why = f"too old resource version: {version} ({self._forgotten[resource]})"
            raise status_errors.Refused(410, "Expired", why)
        return [change for change in self._history.get(resource, ()) if change.version > version]

    def at(self, resource: str, version: int) -> dict[Key, Json]:
        """Return the objects of a resource as they were at a version."""
        then = dict(self._objects.get(resource, {}))
        for change in reversed(self.since(resource, version)):
            if change.before is None:
                then.pop(change.key, None)
            else:
                then[change.key] = change.before
        return then

    def compact(self) -> None:
        """Drop all history. A watch that resumes from an earlier version then gets 410."""
        self.version += 1
        for resource in [*self._history, *self._objects]:
            self._forgotten[resource] = self.version
            self._history.get(resource, deque()).clear()

    def follow(self, resource: str, on_change: Callable[[Change], None]) -> Callable[[], None]:
        """Call `on_change` with every change from now on, until the returned function is called."""
        followers = self._followers.setdefault(resource, [])
        followers.append(on_change)
        return lambda: followers.remove(on_change) if on_change in followers else None

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
        while len(history) > REMEMBERED:
            self._forgotten[resource] = history.popleft().version
        for on_change in list(self._followers.get(resource, ())):
            on_change(change)
        for after in self.after_change:
            after(resource, change)
        return kept


def listed(store: Store, target: Target, query: Mapping[str, str], *, behind: int = 0) -> Json:
    """Return all objects of a target in one page, as they were `behind` changes ago."""
    kind, version = target.kind, max(1, store.version - behind)
    objects = store.at(kind.resource, version)
    fits = selectors.by_labels(query.get("labelSelector", ""))
    found = [objects[key] for key in sorted(objects) if target.takes(objects[key]) and fits(labels_of(objects[key]))]
    if kind.schema is None:  # servers send items of built-in kinds without their kind
        found = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in found]
    return {
        "kind": f"{kind.kind}List",
        "apiVersion": kind.api_version,
        "metadata": {"resourceVersion": str(version)},
        "items": found,
    }


def labels_of(item: Json) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


class Feed:
    """Events of one watch. New events are put into `events`; call `close` when the watch ends."""

    def __init__(self, store: Store, target: Target, query: Mapping[str, str]) -> None:
        self.events: asyncio.Queue[Json | None] = asyncio.Queue()
        self.target = target
        self._fits = selectors.by_labels(query.get("labelSelector", ""))
        self._store = store
        for change in store.since(target.kind.resource, int(query.get("resourceVersion") or 0)):
            self._on_change(change)
        self.close = store.follow(target.kind.resource, self._on_change)

    def drop(self) -> None:
        self.events.put_nowait(None)

    def bookmark(self) -> None:
        """Send the current version, so that the watch can resume from it."""
        kind = self.target.kind
        meta = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        self._send("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta})

    def _chosen(self, item: Json | None) -> bool:
        return item is not None and self.target.takes(item) and self._fits(labels_of(item))

    def _on_change(self, change: Change) -> None:
        was, is_ = self._chosen(change.before), change.type != "DELETED" and self._chosen(change.now)
        if is_:
            self._send("MODIFIED" if was else "ADDED", change.now)
        elif was:
            gone = change.now if change.type == "DELETED" else dict(change.before or {})
            meta = {**gone["metadata"], "resourceVersion": str(change.version)}
            self._send("DELETED", {**gone, "metadata": meta})

    def _send(self, type_: str, item: Json) -> None:
        self.events.put_nowait({"type": type_, "object": item})
