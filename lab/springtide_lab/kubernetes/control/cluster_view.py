"""What there is on a cluster, kept fresh by watches: pods, services and nodes.

In: an API server. Out: dictionaries that are up to date, and a call at each change.
"""

import asyncio
from collections.abc import Callable, Sequence

from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import NODES, PODS, SERVICES, ObjectKind, key_of
from springtide_lab.kubernetes.api.status_errors import Json

WATCHED = (PODS, SERVICES, NODES)


class View:
    """Pods and services of some namespaces (none named: all), and all nodes."""

    def __init__(self, client: Client, namespaces: Sequence[str], changed: Callable[[], None]) -> None:
        self._client, self._namespaces, self._changed = client, list(namespaces), changed
        self._things: dict[ObjectKind, dict[tuple[str, str], Json]] = {kind: {} for kind in WATCHED}
        self._synced: dict[tuple[ObjectKind, str], asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pods(self) -> dict[tuple[str, str], Json]:
        return self._things[PODS]

    @property
    def services(self) -> dict[tuple[str, str], Json]:
        return self._things[SERVICES]

    @property
    def nodes(self) -> dict[tuple[str, str], Json]:
        return self._things[NODES]

    async def start(self) -> None:
        for kind in WATCHED:
            for namespace in self._namespaces if kind.namespaced and self._namespaces else [""]:
                self._synced[kind, namespace] = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._follow(kind, namespace)))
        synced = asyncio.create_task(self._all_synced())
        await asyncio.wait([synced, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    async def _all_synced(self) -> None:
        for event in self._synced.values():
            await event.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, kind: ObjectKind, namespace: str) -> None:
        things = self._things[kind]
        async for change in self._client.watch(kind, namespace=namespace, everywhere=not namespace):
            if change.what == "synced":
                self._synced[kind, namespace].set()
            elif change.what == "gone":
                things.pop(key_of(change.thing), None)
            else:
                things[key_of(change.thing)] = change.thing
            self._changed()
