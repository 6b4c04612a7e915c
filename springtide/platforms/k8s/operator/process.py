"""Operator process: watches jobs, plans, pods and nodes, and visits the jobs that a change affects.

When something changes, the operator only puts the job into the `WorkQueue`. The operator makes one visit to a job at a
time, and retries a failed visit with growing delays. The operator stores no progress in users' objects: no annotations,
finalizers or peering.
"""

import asyncio
import contextlib
import logging
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from springtide import errors
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ObjectKind
from springtide.platforms.k8s.objects import names
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator.executor import Executor
from springtide.platforms.k8s.operator.job_view import doomed
from springtide.telemetry.prometheus import MetricsServer

log = logging.getLogger(__name__)

Key = tuple[str, str]
Hear = Callable[[bool, Mapping[str, Any]], None]
"""Function that is called with an object that has changed, or that no longer exists (True)."""

WORKERS = 8
RESYNC_S = 300.0
"""Longest time between two visits of one job, in seconds."""
CONFLICT_S = 0.1
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

SOON_S = 0.05
"""Seconds of delay, which merges a burst of pod changes into one visit."""


class WorkQueue:
    """Queue of jobs. `attend` visits a job and returns the seconds until its next visit, or None for a deleted job."""

    def __init__(self, attend: Callable[[Key], Awaitable[float | None]]) -> None:
        self._attend = attend
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    @property
    def jobs(self) -> set[Key]:
        return set(self._due) | self._busy

    def note(self, key: Key, *, after_s: float = 0.0) -> None:
        when = asyncio.get_running_loop().time() + after_s
        self._due[key] = min(when, self._due.get(key, when))
        self._changed.set()

    def note_all(self) -> None:
        for key in self.jobs:
            self.note(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            self._busy.add(key)
            try:
                again_s = await self._attend_once(key)
            finally:
                self._busy.discard(key)
                self._changed.set()
            if again_s is not None:
                self.note(key, after_s=min(again_s, RESYNC_S))

    async def _attend_once(self, key: Key) -> float | None:
        try:
            again_s = await self._attend(key)
        except errors.Conflict as error:  # another process changed the object first, so read the object again
            log.debug("%s/%s: %s", *key, error)
            return CONFLICT_S
        except Exception as error:  # an error in one job must not stop the visits to other jobs
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause_s = PAUSES_S[min(failures, len(PAUSES_S)) - 1]
            trace = None if isinstance(error, errors.SpringtideError) else error
            log.warning("%s/%s: %s; next attempt in %g s", *key, error, pause_s, exc_info=trace)
            return pause_s
        self._failures.pop(key, None)
        return again_s

    async def _next(self) -> Key:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            ready = [(when, key) for key, when in self._due.items() if key not in self._busy]
            if ready:
                when, key = min(ready)
                if when <= loop.time():
                    del self._due[key]
                    return key
            wait_s = min(ready)[0] - loop.time() if ready else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options of an operator."""

    site: Site
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve. If empty, the operator serves all namespaces and watches the nodes."""
    kubeconfig: str = ""
    context: str = ""
    brain_secret: str = ""
    brain_files: Mapping[str, bytes] = field(default_factory=dict)
    """TLS files with which masters connect to the brain: ca.crt, tls.crt and tls.key."""
    health: str = ""
    """URL of the liveness endpoint, such as http://0.0.0.0:8080/healthz."""


async def run(options: OperatorOptions, stop: asyncio.Event, ready: Callable[[], object] = lambda: None) -> None:
    """Run until `stop` is set. Call `ready` as soon as all watches have listed the existing objects. Raise errors that
    only a person can fix."""
    client = Client.open(options.kubeconfig, options.context)
    async with client, alive(options.health):
        await check(client)
        executor = Executor(
            client,
            options.site,
            brain_secret=options.brain_secret,
            brain_files=options.brain_files,
            can_resize=await client.has(kinds.PODS, "resize"),
        )
        queue = WorkQueue(executor.attend)
        listener = ChangeListener(queue, executor)
        watched: list[tuple[ObjectKind, Hear, str]] = [
            (kinds.ELASTIC_JOBS, listener.job, ""),
            (kinds.SCALE_PLANS, listener.plan, ""),
            (kinds.PODS, listener.pod, names.JOB),
        ]
        if not options.namespaces:
            for node in (await client.list(kinds.NODES)).items:
                # learn of the nodes before the first job, because a master reads the capacity when it starts
                listener.node(False, node)
            watched.append((kinds.NODES, listener.node, ""))
        unsynced = {(kind, space) for kind, _, _ in watched for space in options.namespaces or ("",)}

        async def follow(kind: ObjectKind, hear: Hear, labels: str, space: str) -> None:
            async for change in client.watch(kind, namespace=space, labels=labels, everywhere=not space):
                if change.what != "synced":
                    hear(change.what == "gone", change.thing)
                    continue
                unsynced.discard((kind, space))
                if not unsynced:
                    ready()

        watches = [follow(*kind, space) for kind in watched for space in options.namespaces or ("",)]
        await until(stop, [queue.run(), *watches])


async def until(stop: asyncio.Event, works: Sequence[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(work) for work in (*works, _wait(stop))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


@contextlib.asynccontextmanager
async def alive(url: str) -> AsyncIterator[None]:
    where = urllib.parse.urlsplit(url)
    server = MetricsServer(lambda: "alive\n", path=where.path or "/")
    if url:
        await server.start(where.port or 80, where.hostname or "127.0.0.1", option="--health")
    try:
        yield
    finally:
        await server.close()


async def check(client: Client) -> None:
    for kind in (kinds.ELASTIC_JOBS, kinds.SCALE_PLANS):
        if not await client.has(kind):
            raise errors.NotFound(f"the cluster does not know {kind}; run `springtide k8s install` first")


class ChangeListener:
    """Queues the jobs that a change affects, and ignores irrelevant changes."""

    def __init__(self, queue: WorkQueue, executor: Executor) -> None:
        self._queue, self._executor = queue, executor
        self._known: dict[tuple[str, str, str], tuple[Any, ...]] = {}

    def job(self, gone: bool, thing: Mapping[str, Any]) -> None:
        metadata, status = thing["metadata"], thing.get("status") or {}
        state = (metadata["uid"], metadata.get("generation"), status.get("phase"), status.get("endedAt"))
        self._on_change("job", gone, metadata, state, metadata["name"])

    def plan(self, gone: bool, thing: Mapping[str, Any]) -> None:
        metadata, job = thing["metadata"], (thing.get("spec") or {}).get("job", "")
        if job == metadata["name"]:
            self._on_change("plan", gone, metadata, (metadata["uid"], metadata.get("generation")), job)

    def pod(self, gone: bool, thing: Mapping[str, Any]) -> None:
        if name := (thing["metadata"].get("labels") or {}).get(names.JOB):
            self._queue.note((thing["metadata"]["namespace"], name), after_s=SOON_S)

    def node(self, gone: bool, thing: Mapping[str, Any]) -> None:
        nodes, name = self._executor.nodes, thing["metadata"]["name"]
        before = doomed(nodes.values())
        if gone:
            nodes.pop(name, None)
        else:
            nodes[name] = {key: thing.get(key) or {} for key in ("metadata", "spec", "status")}
        if doomed(nodes.values()) != before:
            self._queue.note_all()

    def _on_change(self, what: str, gone: bool, metadata: Mapping[str, Any], state: tuple[Any, ...], job: str) -> None:
        key = (what, metadata["namespace"], metadata["name"])
        if gone:
            self._known.pop(key, None)
        elif self._known.get(key) == state:
            return
        else:
            self._known[key] = state
        self._queue.note((metadata["namespace"], job))
