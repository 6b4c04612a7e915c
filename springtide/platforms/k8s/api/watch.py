"""What there is of a kind, and whatever changes: a watch that goes on where it was when its connection breaks.

In: `client.Client.watch`. Out: `ObjectChange`s: first all there is, then `synced`, then what happens. A server that has
forgotten the version to go on from (410) is asked for everything anew, and the difference is told as changes: nobody
who reads them need know. Objects are told once per version, and one made anew under an old name as gone, then added.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from springtide import errors
from springtide.platforms.k8s.api import api_errors
from springtide.platforms.k8s.api.kinds import Object, ObjectKind, key_of

if TYPE_CHECKING:
    from springtide.platforms.k8s.api.client import Client

log = logging.getLogger(__name__)

LASTS_S = 60  # of one request: a connection that broke without a word is noticed after this
SLACK_S = 10.0

What = Literal["added", "changed", "gone", "synced"]


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """Something happened to an object; `synced`: all there was has been told."""

    what: What
    thing: Object


@dataclass(slots=True)
class KnownObjects:
    """What the reader of a watch has been told. Pure."""

    things: dict[tuple[str, str], Object] = field(default_factory=dict)

    def relisted(self, items: Iterable[Object]) -> list[ObjectChange]:
        """All there is: what that changes."""
        now = {key_of(item): item for item in items}
        told = [self._gone(key) for key in [key for key in self.things if key not in now]]
        for item in now.values():
            told += self.seen(item)
        return told

    def seen(self, thing: Object) -> list[ObjectChange]:
        """An object as it is: what that changes."""
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
        """An object that is gone: its last state."""
        before = self.things.get(key_of(thing))
        if before is None or identity(before) != identity(thing):
            return []
        del self.things[key_of(thing)]
        return [ObjectChange("gone", thing)]

    def _gone(self, key: tuple[str, str]) -> ObjectChange:
        return ObjectChange("gone", self.things.pop(key))


def identity(thing: Object) -> str:
    """Of this object and none that has its name after it."""
    return str(thing.get("metadata", {}).get("uid", ""))


def version(thing: Object) -> str:
    """Of this state of it."""
    return str(thing.get("metadata", {}).get("resourceVersion", ""))


class Stale(Exception):
    """The server does not know any more what happened since."""


async def changes(
    client: "Client", kind: ObjectKind, space: str, *, labels: str, fields: str, everywhere: bool
) -> AsyncIterator[ObjectChange]:
    """For ever. What can only be mended by a person (no right, no such kind) is raised."""
    known, synced, since, failures = KnownObjects(), False, "", 0
    while True:
        try:
            if not since:
                listing = await client.list(kind, namespace=space, labels=labels, fields=fields, everywhere=everywhere)
                for change in known.relisted(listing.items):
                    yield change
                since = listing.version
                if not synced:
                    yield ObjectChange("synced", {})
                    synced = True
            query = ({"labelSelector": labels} if labels else {}) | ({"fieldSelector": fields} if fields else {})
            query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(LASTS_S)}
            path, what = kind.path("" if everywhere else space), f"watch {kind}"
            failures += 1  # until it has said something: a server that ends every watch at once is not asked in a loop
            async for line in client.stream(
                path, what, query | {"resourceVersion": since}, silence_s=LASTS_S + SLACK_S
            ):
                news, since = read(line, since)
                failures = 0
                for change in told(known, *news):
                    yield change
        except Stale:
            log.info("the server has forgotten %s of %s: all of them are read again", since, kind)
            since = ""
        except errors.Conflict:  # 410 before the first line
            since = ""
        except errors.ClusterUnreachable as error:
            log.info("a watch of %s goes on: %s", kind, error)
            failures = max(failures, 1)
        if failures:
            await asyncio.sleep(min(api_errors.LONGEST_PAUSE_S, api_errors.FIRST_PAUSE_S * 2 ** min(failures, 10)))


def read(line: bytes, since: str) -> tuple[tuple[str, Object], str]:
    """What a line of a watch says, and the version to go on from after it."""
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


def told(known: KnownObjects, what: str, thing: Object) -> list[ObjectChange]:
    """What a reader learns of an event."""
    if what == "BOOKMARK":
        return []
    return known.deleted(thing) if what == "DELETED" else known.seen(thing)
