"""Lists and watches: what of the store a request is to see.

In: a `Target` and the query of a request. Out: a page of objects with its version, or `Feed`: the events of a watch, as
objects enter, change and leave what was selected.
"""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_store import Change, Key, Store
from springtide_lab.kubernetes.api.paths import Target
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import selectors
from springtide_lab.kubernetes.objects.kinds import Kind


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
    """The objects asked for: all, or `limit` of them and where to go on; `behind` answers with an older state."""
    kind, version, start = target.kind, max(1, store.version - behind), ("", "")
    if text := query.get("continue"):
        version, start = _read_token(text)
    elif query.get("resourceVersionMatch") == "Exact":
        version = int(query["resourceVersion"])
    if behind or version != store.version:
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
