"""Watches objects of a kind and resumes after broken connections.

In: `client.Client.watch`. Out: `ObjectChange`s: all existing objects, then `synced`, then every change. If the server
no longer knows the version (410), the watch lists all objects again and reports the differences as changes. Readers
need not know. Each version of an object is reported once. An object that was recreated under an old name is reported as
removed, then as added.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from springtide import errors
from springtide.platforms.k8s.api import api_errors
from springtide.platforms.k8s.api.kinds import Object, key_of

LASTS_S = 60  # of one request: a silently broken connection is noticed after this
SLACK_S = 10.0

What = Literal["added", "changed", "gone", "synced"]


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A change of an object; `synced` means that all existing objects have been reported."""

    what: What
    thing: Object


@dataclass(slots=True)
class KnownObjects:
    """Objects that the reader of a watch knows. Pure."""

    things: dict[tuple[str, str], Object] = field(default_factory=dict)

    def relisted(self, items: Iterable[Object]) -> list[ObjectChange]:
        now = {key_of(item): item for item in items}
        told = [self._gone(key) for key in [key for key in self.things if key not in now]]
        for item in now.values():
            told += self.seen(item)
        return told

    def seen(self, thing: Object) -> list[ObjectChange]:
        key = key_of(thing)
        before = self.things.get(key)
        self.things[key] = thing
        if before is None:
            return [ObjectChange("added", thing)]
        if identity(before) != identity(thing):
            return [ObjectChange("gone", before), ObjectChange("added", thing)]
        same = version(before) == version(thing) != ""
        return [] if same else [ObjectChange("changed", thing)]

    def deleted(self, thing: Object) -> list[ObjectChange]:
        before = self.things.get(key_of(thing))
        if before is None or identity(before) != identity(thing):
            return []
        del self.things[key_of(thing)]
        return [ObjectChange("gone", thing)]

    def apply(self, what: str, thing: Object) -> list[ObjectChange]:
        """Apply one event of a watch and return the resulting changes."""
        if what == "BOOKMARK":
            return []
        return self.deleted(thing) if what == "DELETED" else self.seen(thing)

    def _gone(self, key: tuple[str, str]) -> ObjectChange:
        return ObjectChange("gone", self.things.pop(key))


def identity(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("uid", ""))


def version(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("resourceVersion", ""))


class Stale(Exception):
    """Raised if the server no longer knows the version to resume from."""


def parse_event(line: bytes, since: str) -> tuple[tuple[str, Object], str]:
    """Parse one line of a watch into an event and the version to resume from."""
    try:
        event = msgspec.json.decode(line)
        what, thing = event["type"], event["object"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise errors.ClusterUnreachable(f"a watch has sent what is no event: {line[:80]!r}") from None
    if what == "ERROR":
        if thing.get("code") == api_errors.GONE:
            raise Stale
        raise errors.ClusterUnreachable(f"a watch has ended: {thing.get('message', thing)}")
    return (what, thing), version(thing) or since
