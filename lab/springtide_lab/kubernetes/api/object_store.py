"""All objects of the API, in memory, each change numbered: what lists read and what watches follow.

In: whole objects from `lifecycle`. Out: the objects, and `Change`s to whoever follows a resource. The number of the
last change is the `resourceVersion`; a version that is no longer remembered is `Refused` with 410.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json

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


def at_path(item: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for part in path.strip(".").split("."):
        if not isinstance(item, dict):
            return None
        item = item.get(part)
    return item
