"""Runs roles as pods: writes the job's ScalePlan, from which the operator creates pods, and reads the status of the
pods.

If a pod does not start within `pending_s` seconds, the platform reports an exit with the cluster's reason. Roles
survive the loss of their agent: the next agent reads the same plan and pods. A writer never overwrites the plan of a
later master.
"""

import asyncio
import logging
import re
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from springtide import errors
from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit, RoleKind
from springtide.domain.plan.scale_plan import PlanStatus, PodState, PodWish, ScalePlan
from springtide.domain.spec import schema
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.k8s.api import client, kinds
from springtide.platforms.k8s.api.client import Client, ObjectChange
from springtide.platforms.k8s.api.kinds import PODS, SCALE_PLANS, Object
from springtide.platforms.k8s.objects import job_objects, names, pod_status
from springtide.telemetry import logs

log = logging.getLogger(__name__)

TERM = f"{kinds.GROUP}/term"
"""Annotation of the plan with the term of its last writer."""
# changes within this many seconds are written together, because an agent starts all first roles of a job in one poll
ROUND_S = 0.02

TICK_S = 0.5
UNSEEN_S = 30.0  # a pod counts as never created if it was removed from the plan and not seen for this many seconds
REFUSED = ("Infeasible", "Unsupported")
PUT_OFF = "Deferred"
OnExit = Callable[[RoleExit], None]
TAKEN = re.compile(
    "Evicted|Preempt(ing|ed)|Node(Lost|Shutdown|Affinity)|Shutdown|Terminated|UnexpectedAdmissionError"
    "|OutOf(cpu|memory|pods)|DeadlineExceeded"
)
"""Reasons in a pod's status that mean an eviction by the cluster."""
STATUS_KILLED = 137
"""Exit status after SIGKILL. SIGKILL in a pod with a memory limit usually comes from the kernel's OOM killer, even if
the pod's reason is not OOMKilled.
"""


class PlanWriter:
    """Writer of one job's plan. `term` is set when the agent's first master has a term."""

    def __init__(self, client: Client, job: str) -> None:
        self._client, self.job = client, job
        self.pods: dict[str, PodWish] = {}
        self.kill: set[str] = set()
        self.begun = asyncio.Event()
        """Set once the agent's term is known; before that, the platform writes nothing."""
        self.term = 0
        self.generation = 0
        self._dirty, self._written = asyncio.Event(), asyncio.Event()
        self._written.set()

    def begin_term(self, number: int) -> None:
        self.term = number
        self.begun.set()

    async def read(self) -> tuple[ScalePlan, PlanStatus]:
        thing = await self._client.get(SCALE_PLANS, self.job)
        self.generation = int(thing["metadata"].get("generation", 0))
        return schema.made(ScalePlan, thing["spec"]), job_objects.plan_status(thing)

    def change(self) -> None:
        self._dirty.set()
        self._written.clear()

    async def keep(self) -> None:
        """Write every change. Raise `Fenced` if a later agent has written the plan."""
        failures = 0
        while True:
            await self._dirty.wait()
            await self.begun.wait()
            await asyncio.sleep(ROUND_S)
            self._dirty.clear()
            try:
                await self._write()
                failures = 0
                if not self._dirty.is_set():
                    self._written.set()
            except errors.Conflict:
                self._dirty.set()
            except errors.ClusterUnreachable as error:
                log.warning("cannot write the plan of %s yet: %s", self.job, error)
                self._dirty.set()
                await asyncio.sleep(min(client.LONGEST_PAUSE_S, client.FIRST_PAUSE_S * 2 ** min(failures, 10)))
                failures += 1

    async def flushed(self) -> None:
        if self.begun.is_set():
            await self._written.wait()

    async def _write(self) -> None:
        thing = await self._client.get(SCALE_PLANS, self.job)
        annotations = thing["metadata"].setdefault("annotations", {})
        other = int(annotations.get(TERM) or 0)
        if other > self.term:
            raise errors.Fenced(
                f"the plan of {self.job} was written by master number {other}, but this is master number {self.term}"
            )
        plan = ScalePlan(job=self.job, origin="master", pods=tuple(self.pods.values()), kill=tuple(sorted(self.kill)))
        spec = schema.plain_of(plan)
        if thing["spec"] == spec and other == self.term:
            return
        annotations[TERM] = str(self.term)
        written = await self._client.update(SCALE_PLANS, {**thing, "spec": spec})
        self.generation = int(written["metadata"].get("generation", 0))


@dataclass(slots=True)
class PodEntry:
    """Pod of a life that has started and not ended."""

    wish: PodWish
    name: str
    on_exit: OnExit
    since: float
    here: bool = False
    asked: bool = False
    noticed: bool = False
    put_off: float | None = None
    """Time since which the node has deferred the pod's new size; None if the size is not deferred."""
    unlisted: int = 0
    """Generation of the first plan without this pod."""


class KubernetesPlatform:
    """The roles of one job. Call `open` before use. `notice` is called with each pod that will be evicted, and the
    reason."""

    def __init__(
        self,
        client: Client,
        job: str,
        *,
        pending_s: float,
        resize_s: float,
        notice: Callable[[Life, str], None] = lambda life, why: None,
        user_plan: Callable[[Object], None] = lambda plan: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self.job, self._clock = client, job, clock
        self._pending_s, self._resize_s = pending_s, resize_s
        self._notice, self._user_plan = notice, user_plan
        self.writer = PlanWriter(client, job)
        self.status = PlanStatus()
        self._entries: dict[Life, PodEntry] = {}
        self._pods: dict[str, Object] = {}
        self._found: tuple[PodWish, ...] = ()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when this agent cannot continue, because another agent has written the plan or Kubernetes denies access
        to pods.
        """
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        plan, self.status = await self.writer.read()
        self._found = plan.pods
        listing = await self._client.list(PODS, labels=f"{names.JOB}={self.job}")
        self._pods = {item["metadata"]["name"]: item for item in listing.items}
        for work in (self.writer.keep(), self._watch_pods(), self._watch_plans(), self._tick()):
            self._tasks.append(asyncio.create_task(self._guarded(work)))

    async def disconnect(self) -> None:
        flushing = asyncio.create_task(self.writer.flushed())
        await asyncio.wait({flushing, self.failed}, timeout=UNSEEN_S, return_when=asyncio.FIRST_COMPLETED)
        for task in (flushing, *self._tasks):
            task.cancel()
        await asyncio.gather(flushing, *self._tasks, return_exceptions=True)
        self.failed.cancel()

    def forget(self) -> None:
        self._found, self.status = (), replace(self.status, made={}, pods={})

    @property
    def left(self) -> tuple[str, ...]:
        lives = {name: names.life_of(pod) for name, pod in self._pods.items()}
        roles = [name for name, life in lives.items() if life is not None and str(life.role) != "master"]
        return tuple(name for name in roles if not pod_status.process_ended(self._pods[name]))

    # ---- the verbs of a platform ----

    def start(self, launch: RoleLaunch, on_exit: OnExit) -> int:
        role, limits = launch.life.role, launch.limits
        wish = PodWish(
            role=str(role.kind),
            rank=role.rank,
            incarnation=launch.life.incarnation,
            cpu=limits.cpu,
            memory=limits.memory,
        )
        self._add(wish, on_exit)
        self.writer.change()
        return 0

    def adopt(self, on_exit: OnExit) -> list[Life]:
        for wish in self._found:
            entry = self._add(wish, on_exit)
            pod = self._pods.get(entry.name)
            made = self.status.made.get(str(wish.life.role), -1) >= wish.incarnation
            if pod is not None:
                self._on_pod(pod)
            elif made:
                self._end_life(wish.life, exit_of({}, wish.life, asked=False, present=False))
        return list(self._entries)

    def stop(self, life: Life, *, kill: bool) -> None:
        entry = self._entries.get(life)
        if entry is None:
            return
        if not entry.asked:
            entry.asked, entry.unlisted = True, self.writer.generation + 1
            entry.since = self._clock()
            self.writer.pods.pop(entry.name, None)
        if kill:
            self.writer.kill.add(entry.name)
        self.writer.change()

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        """Resize a running pod if the cluster can. Otherwise tell `notice` that the pod must be replaced."""
        entry = self._entries.get(life)
        if entry is None or entry.asked:
            return False
        if not self.status.in_place_resize:
            self._tell_notice(entry, "its limits change, and this cluster cannot change those of a running pod")
            return False
        entry.wish = replace(entry.wish, cpu=limits.cpu, memory=limits.memory)
        self.writer.pods[entry.name] = entry.wish
        self.writer.change()
        return True

    def running(self) -> list[Life]:
        return list(self._entries)

    def usage(self) -> Mapping[Life, tuple[Usage, ProcessLimits]]:
        return {}

    def close(self) -> None:
        self.writer.pods.clear()
        self.writer.kill.clear()
        self.writer.change()

    def leave(self) -> None:
        """Leave the pods running, so that the next agent finds them through the plan."""

    # ---- observed pods ----

    def _add(self, wish: PodWish, on_exit: OnExit) -> PodEntry:
        entry = PodEntry(wish=wish, name=wish.pod_name(self.job), on_exit=on_exit, since=self._clock())
        self._entries[wish.life] = entry
        self.writer.pods[entry.name] = wish
        return entry

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    async def _watch_pods(self) -> None:
        fresh: dict[str, Object] = {}
        synced = False
        async for change in self._client.watch(PODS, labels=f"{names.JOB}={self.job}"):
            if change.what == "synced":
                # handle pods that vanished between `open` and now
                for gone in [name for name in self._pods if name not in fresh]:
                    self._on_deleted(self._pods.pop(gone))
                synced = True
            elif not synced:
                fresh[change.thing["metadata"]["name"]] = change.thing
            self._take(change)

    def _take(self, change: ObjectChange) -> None:
        if change.what in ("added", "changed"):
            self._pods[change.thing["metadata"]["name"]] = change.thing
            self._on_pod(change.thing)
        elif change.what == "gone":
            self._pods.pop(change.thing["metadata"]["name"], None)
            self._on_deleted(change.thing)

    def _on_pod(self, pod: Object) -> None:
        life = names.life_of(pod)
        entry = self._entries.get(life) if life is not None else None
        if life is None or entry is None:
            return
        entry.here = entry.here or pod_status.process_started(pod)
        if pod_status.process_ended(pod):
            if words := pod_status.last_words(pod):
                log.info("last output of %s: %s", life, words)
            self._end_life(life, exit_of(pod, life, asked=entry.asked))
        elif (why := pod_status.why_evicted(pod)) and not entry.asked:
            self._tell_notice(entry, why)

    def _on_deleted(self, pod: Object) -> None:
        life = names.life_of(pod)
        if life is not None and life in self._entries:
            asked = self._entries[life].asked
            self._end_life(life, exit_of(pod, life, asked=asked, present=False))

    def _end_life(self, life: Life, ended: RoleExit) -> None:
        entry = self._entries.pop(life)
        self.writer.pods.pop(entry.name, None)
        self.writer.kill.discard(entry.name)
        self.writer.change()
        entry.on_exit(ended)

    def _tell_notice(self, entry: PodEntry, why: str) -> None:
        if not entry.noticed:
            entry.noticed = True
            self._notice(entry.wish.life, why)

    async def _watch_plans(self) -> None:
        async for change in self._client.watch(SCALE_PLANS):
            if change.what not in ("added", "changed") or change.thing["spec"].get("job") != self.job:
                continue
            if change.thing["metadata"]["name"] != self.job:
                self._user_plan(change.thing)
                continue
            self.status = job_objects.plan_status(change.thing)
            for life, entry in list(self._entries.items()):
                state = self.status.pods.get(entry.name)
                if state is not None and state.phase == "Gone" and entry.name not in self._pods:
                    self._end_life(life, exit_of({}, life, asked=entry.asked, present=False))
                elif state is not None and not entry.asked:
                    self._resized(entry, state)

    def _resized(self, entry: PodEntry, state: PodState) -> None:
        """Replace a pod whose node refuses its new size, or defers it for too long."""
        if state.resized in REFUSED:
            self._tell_notice(entry, f"its limits change, and its node cannot: {state.why or state.resized}")
        if state.resized != PUT_OFF:
            entry.put_off = None
        elif entry.put_off is None:
            entry.put_off = self._clock()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            at = self._clock()
            for life, entry in list(self._entries.items()):
                pod = self._pods.get(entry.name)
                if entry.asked and pod is None and self._was_never_made(entry, at):
                    self._end_life(life, exit_of({}, life, asked=True, present=False))
                elif not entry.asked and not entry.here and at - entry.since > self._pending_s:
                    state = self.status.pods.get(entry.name)
                    why = pod_status.why_absent(pod, state.why if state is not None else "")
                    role = life.role
                    self._end_life(life, RoleExit(role=role, incarnation=life.incarnation, pid=0, unplaced=why))
                elif not entry.asked and entry.put_off is not None and at - entry.put_off > self._resize_s:
                    why = f"its limits change, but its node has had no room for {self._resize_s:g} s"
                    self._tell_notice(entry, why)

    def _was_never_made(self, entry: PodEntry, at: float) -> bool:
        """Return True once the operator has seen a plan without this pod, because it can then no longer create
        the pod.
        """
        return self.status.observed_generation >= entry.unlisted or at - entry.since > UNSEEN_S


def exit_of(pod: Object, life: Life, *, asked: bool, present: bool = True) -> RoleExit:
    """Return how the process ended. `asked`: the platform deleted the pod. Any other deletion is an eviction.
    `present`: the pod still exists. A pod that vanished was evicted, or its node was lost.
    """
    code, word = pod_status.terminated(pod).get("exitCode"), pod.get("status", {}).get("reason") or ""
    taken = TAKEN.fullmatch(word) is not None or pod_status.disruption(pod) != ("", "")
    deleted = "deletionTimestamp" in pod.get("metadata", {}) or not present
    evicted = not asked and (taken or deleted)
    name = _signal(code)
    reason = pod_status.terminated(pod).get("reason")
    oom = not evicted and not asked and (reason == "OOMKilled" or code == STATUS_KILLED)
    if code is None:
        name = "SIGKILL" if asked else ""
    raised = bool(code) and not name and life.role.kind is not RoleKind.WORKER
    return RoleExit(
        role=life.role,
        incarnation=life.incarnation,
        pid=0,
        code=None if name else code,
        signal=name,
        oom=oom,
        evicted=evicted or (code is None and not asked),
        error=logs.error_in(pod_status.last_message(pod)) if raised else "",
    )


def _signal(code: int | None) -> str:
    if code is None or code <= 128:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""
