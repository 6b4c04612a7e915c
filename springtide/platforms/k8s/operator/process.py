"""Operator process: receives changes of jobs, plans, pods and nodes from kopf, and visits the affected jobs.

kopf maintains the watches. Its handlers only fill the `WorkQueue`, so kopf stores no progress in objects: no
annotations, finalizers or peering. One visit per job at a time; failures back off.
"""

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide import errors
from springtide.platforms.k8s.api import kinds, kubeconfig
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.objects import names
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator.executor import Executor
from springtide.platforms.k8s.operator.job_view import doomed

Key = tuple[str, str]
"""Namespace and name of a job."""

WORKERS = 8
RESYNC_S = 300.0
"""Longest time between two visits of a job, in seconds."""
CONFLICT_S = 0.1
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Delays after consecutive failures, in seconds."""


class WorkQueue:
    """Queue of jobs. `attend` returns the seconds until the next visit, or None for a deleted job."""

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
        """Schedule a job; an earlier due time stays."""
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
                again_s = await self._tried(key)
            finally:
                self._busy.discard(key)
                self._changed.set()
            if again_s is not None:
                self.note(key, after_s=min(again_s, RESYNC_S))

    async def _tried(self, key: Key) -> float | None:
        try:
            again_s = await self._attend(key)
        except errors.Conflict as error:  # another writer was faster: read the object again
            log.debug("%s/%s: %s", *key, error)
            return CONFLICT_S
        except Exception as error:  # a broken job must not stop the others
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause_s = PAUSES_S[min(failures, len(PAUSES_S)) - 1]
            trace = None if isinstance(error, errors.SpringtideError) else error
            log.warning("%s/%s: %s; again in %g s", *key, error, pause_s, exc_info=trace)
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


log = logging.getLogger(__name__)

SOON_S = 0.05
"""Delay that merges bursts of pod changes into one visit."""
LOGIN_S = 600.0
"""Seconds between two logins of kopf, because tokens of pods are replaced."""
HASTE_S = 1.0
"""Time limit for evictions: an eviction that the budget forbids is not awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options of an operator."""

    site: Site
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty for all namespaces, with the nodes."""
    kubeconfig: str = ""
    context: str = ""
    brain_secret: str = ""
    """Secret that masters present to the cluster's brain."""
    brain_files: Mapping[str, bytes] = field(default_factory=dict)
    """TLS files for masters to reach the brain: ca.crt, tls.crt and tls.key."""
    health: str = ""
    """URL of the liveness endpoint, such as http://0.0.0.0:8080/healthz."""


async def run(options: OperatorOptions, stop: asyncio.Event, ready: asyncio.Event | None = None) -> None:
    try:
        import kopf
    except ImportError:
        raise errors.MissingExtra("the operator", "k8s") from None
    reached = kubeconfig.find(options.kubeconfig, options.context)
    hasty = kubeconfig.find(options.kubeconfig, options.context)
    async with Client(reached) as client, Client(hasty, within_s=HASTE_S) as quick:
        await check(client)
        executor = Executor(
            client, quick, options.site, brain_secret=options.brain_secret, brain_files=options.brain_files
        )
        executor.can_resize = await client.has(kinds.PODS, "resize")
        queue = WorkQueue(executor.attend)
        listener = ChangeListener(queue, executor)
        if not options.namespaces:  # before the first job, because a master reads the capacity at its start
            for node in (await client.list(kinds.NODES)).items:
                listener.node("ADDED", node)
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False  # changed conditions become events instead
        # `check` has found our kinds, and the operator needs no permission to list others
        settings.scanning.disabled = True
        settings.watching.label_selectors[kinds.PODS.plural] = names.JOB
        settings.queueing.idle_timeout = settings.queueing.exit_timeout = 0.2  # handlers only fill the queue
        settings.process.ultimate_exiting_timeout = None
        over = asyncio.Event()
        watches = kopf.operator(
            registry=handlers(kopf, listener, client, everywhere=not options.namespaces),
            settings=settings,
            standalone=True,
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
            liveness_endpoint=options.health or None,
            stop_flag=over,
            ready_flag=ready,
        )
        await together(watches, over, queue, stop)


async def together(
    watches: Coroutine[Any, Any, None], over: asyncio.Event, queue: WorkQueue, stop: asyncio.Event
) -> None:
    """Run watches and workers until `stop` or a failure.

    The tasks of this module end first, because kopf cancels all younger tasks of its loop.
    """
    watching = asyncio.create_task(watches)
    working, told = asyncio.create_task(queue.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({watching, working, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        told.cancel()
        await asyncio.wait({working, told})
        over.set()
        await watching
    if not working.cancelled():
        working.result()


async def check(client: Client) -> None:
    for kind in (kinds.ELASTIC_JOBS, kinds.SCALE_PLANS):
        if not await client.has(kind):
            raise errors.NotFound(f"the cluster does not know {kind}; run `springtide k8s install` first")


class ChangeListener:
    """Puts the jobs that a change affects into the queue; ignores irrelevant changes."""

    def __init__(self, queue: WorkQueue, executor: Executor) -> None:
        self._queue, self._executor = queue, executor
        self._known: dict[tuple[str, str, str], tuple[Any, ...]] = {}

    def job(self, kind: str | None, thing: Mapping[str, Any]) -> None:
        metadata, status = thing["metadata"], thing.get("status") or {}
        told = (metadata["uid"], metadata.get("generation"), status.get("phase"), status.get("endedAt"))
        self._note("job", kind, metadata, told, metadata["name"])

    def plan(self, kind: str | None, thing: Mapping[str, Any]) -> None:
        metadata, job = thing["metadata"], (thing.get("spec") or {}).get("job", "")
        if job == metadata["name"]:
            self._note("plan", kind, metadata, (metadata["uid"], metadata.get("generation")), job)

    def pod(self, kind: str | None, thing: Mapping[str, Any]) -> None:
        if name := (thing["metadata"].get("labels") or {}).get(names.JOB):
            self._queue.note((thing["metadata"]["namespace"], name), after_s=SOON_S)

    def node(self, kind: str | None, thing: Mapping[str, Any]) -> None:
        nodes, name = self._executor.nodes, thing["metadata"]["name"]
        before = doomed(nodes.values())
        if kind == "DELETED":
            nodes.pop(name, None)
        else:
            nodes[name] = {key: thing.get(key) or {} for key in ("metadata", "spec", "status")}
        if doomed(nodes.values()) != before:
            self._queue.note_all()

    def _note(self, what: str, kind: str | None, metadata: Mapping[str, Any], told: tuple[Any, ...], job: str) -> None:
        key = (what, metadata["namespace"], metadata["name"])
        if kind == "DELETED":
            self._known.pop(key, None)
        elif self._known.get(key) == told:
            return
        else:
            self._known[key] = told
        self._queue.note((metadata["namespace"], job))


def handlers(kopf: Any, listener: ChangeListener, client: Client, *, everywhere: bool) -> Any:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> Any:
        return await connection(kopf, client.access)

    kopf.on.login(registry=registry)(login)
    watched: list[tuple[tuple[str, ...], Any, dict[str, Any]]] = [
        ((kinds.GROUP, kinds.VERSION, kinds.ELASTIC_JOBS.plural), listener.job, {}),
        ((kinds.GROUP, kinds.VERSION, kinds.SCALE_PLANS.plural), listener.plan, {}),
        (("v1", kinds.PODS.plural), listener.pod, {"labels": {names.JOB: kopf.PRESENT}}),
    ]
    if everywhere:
        watched.append((("v1", kinds.NODES.plural), listener.node, {}))
    for selector, hear, only in watched:

        async def heard(event: Mapping[str, Any], _hear: Any = hear, **_: Any) -> None:
            _hear(event["type"], event["object"])

        kopf.on.event(*selector, registry=registry, id=hear.__name__, **only)(heard)
    return registry


async def connection(kopf: Any, reached: kubeconfig.Access) -> Any:
    headers = await reached.headers(anew=True)

    class KopfConnection(kopf.ConnectionInfo):  # type: ignore[misc]
        """Connection with certificates that were read once."""

        def as_ssl_context(self) -> Any:
            return super().as_ssl_context() if isinstance(reached.verify, bool) else reached.verify

    return KopfConnection(
        server=reached.server,
        token=headers.get("Authorization", "").removeprefix("Bearer ") or None,
        proxy_url=reached.proxy,
        default_namespace=reached.namespace,
        expiration=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LOGIN_S),
    )
