"""Forwards requests of users and of the cluster to the master of a job on Kubernetes.

In: ScalePlans of users, edits of the ElasticJob's spec, and pods that the cluster will evict. Out: requests to the
master, and a reply in the status of every plan.
"""

import asyncio
import itertools
import logging
import pathlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from springtide import config, errors, private_files
from springtide.domain.core.roles import Life
from springtide.domain.core.shape import ShapeBounds
from springtide.domain.plan import capacity
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.plan.scale_plan import ScalePlan
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob, RoleWish
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.agent import master_client
from springtide.platforms.agent.agent import Agent
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, SCALE_PLANS, Object
from springtide.platforms.k8s.job.job_status import StatusWriter
from springtide.platforms.k8s.objects import job_objects
from springtide.platforms.k8s.objects.job_objects import APPLIED, REJECTED, SUPERSEDED, JobObject
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.telemetry import events, logs

log = logging.getLogger(__name__)

CHANGED = "the job's spec was changed"
PAUSE_S = 1.0
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds to wait before the next attempt to apply a plan that the master or the cluster could not accept, by
attempt."""


def read_heeded(files: logs.RunFiles, now: ElasticJob) -> ElasticJob:
    """Return the spec that the last master used; `now` if no master has started yet."""
    try:
        text = files.heeded.read_bytes() if files.journal.exists() else b""
        return schema.from_spec(msgspec.json.decode(text), now.name) if text else now
    except (OSError, msgspec.DecodeError, errors.BadInput) as error:
        log.warning("edits that were made while no master was running are unknown: %s: %s", files.heeded, error)
        return now


def write_heeded(files: logs.RunFiles, job: ElasticJob) -> None:
    with events.disk_errors(files.heeded):
        private_files.replace(files.heeded, msgspec.json.encode(schema.spec_of(job)))


@dataclass(frozen=True, slots=True)
class UserPlan:
    """A user's plan without a reply."""

    name: str
    made_at: str
    plan: ScalePlan | None
    trouble: str = ""


def open_wish(thing: Object) -> UserPlan | None:
    """Return a user's plan. Return None if the plan already has an answer or is being deleted."""
    metadata = thing["metadata"]
    if (thing.get("status") or {}).get("phase") or "deletionTimestamp" in metadata:
        return None
    name, at = metadata["name"], str(metadata.get("creationTimestamp", ""))
    try:
        plan = schema.made(ScalePlan, thing["spec"])
        if plan.workers is plan.servers is plan.data_workers is None:
            return UserPlan(name, at, None, "the plan has no number: expected workers, servers or dataWorkers")
        return UserPlan(name, at, plan)
    except errors.BadInput as error:
        return UserPlan(name, at, None, str(error))


def newest(wishes: Iterable[UserPlan]) -> tuple[UserPlan | None, list[UserPlan]]:
    ordered = sorted(wishes, key=lambda wish: (wish.made_at, wish.name))
    return (ordered[-1], ordered[:-1]) if ordered else (None, [])


def scale_request(plan: ScalePlan, name: str) -> messages.ScaleRequest:
    why = plan.reason or f"asked by the user (ScalePlan {name})"
    return messages.ScaleRequest(workers=plan.workers, servers=plan.servers, data_workers=plan.data_workers, why=why)


def changed(
    before: ElasticJob, now: ElasticJob, status: JobStatus, *, planned: bool = False
) -> messages.ScaleRequest | None:
    """Return the `Scale` request for an edited spec; None if the edit changes no number.

    `planned`: True if the master plans the job, in which case `rebound` handles the bounds.
    """
    workers = _number(before.workers, now.workers, status.roles.workers.wanted, planned=planned)
    servers = _number(before.servers, now.servers, status.roles.servers.wanted, planned=planned)
    data_workers = None
    if before.data_workers != now.data_workers and now.data_workers != "auto":
        data_workers = 0 if now.data_workers == "off" else int(now.data_workers)
    if workers is servers is data_workers is None:
        return None
    return messages.ScaleRequest(workers=workers, servers=servers, data_workers=data_workers, why=CHANGED)


def rebound(before: ElasticJob, now: ElasticJob, limits: ShapeBounds) -> messages.BoundsRequest | None:
    """Return new bounds for planning from an edited spec; None if the bounds did not change.

    `limits` has the bounds that the spec and the cluster allow.
    """
    found = {
        name: (getattr(limits.least, name), getattr(limits.most, name))
        for name in ("workers", "servers")
        if _differ(getattr(before, name), getattr(now, name)) and getattr(now, name).count is None
    }
    return messages.BoundsRequest(**found, why=CHANGED) if found else None


def _differ(before: RoleWish, now: RoleWish) -> bool:
    return (before.count, before.min, before.max) != (now.count, now.min, now.max)


def _number(before: RoleWish, now: RoleWish, wanted: int, *, planned: bool) -> int | None:
    """Return the edited number. If the job is not planned, return the edited bound that the current count violates."""
    if not _differ(before, now) or (planned and now.count is None):
        return None
    within = max(now.min or 1, min(wanted, now.max or wanted))
    number = now.count if now.count is not None else within
    return number if number != wanted else None


class UserRequests:
    """Requests of users for one job."""

    def __init__(
        self, client: Client, job: JobObject, files: logs.RunFiles, settings: config.Settings, statuses: StatusWriter
    ) -> None:
        self._client, self._job, self._files, self._settings = client, job, files, settings
        self._statuses = statuses
        self.agent: Agent | None = None
        self.status: JobStatus | None = None
        self._wishes: dict[str, UserPlan] = {}
        self._answers: dict[str, Object] = {}
        """Replies to plans that are not written yet."""
        self._news, self._changed = asyncio.Event(), asyncio.Event()
        self._heeded, self._latest = read_heeded(files, job.job), job.job
        """The spec that the master uses, and the newest spec."""
        self.capacity: PlatformCapacity | None = None
        """Capacity that bounds a changed spec on this cluster; None if the job is not planned."""

    # ---- plans of users ----

    def user_plan(self, thing: Object) -> None:
        wish = open_wish(thing)
        if wish is None or wish.name in self._answers:
            self._wishes.pop(thing["metadata"]["name"], None)
        else:
            self._wishes[wish.name] = wish
            self._news.set()

    async def keep_plans(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wishes:
                if self.status is None:  # no master runs yet
                    await asyncio.sleep(PAUSE_S / 10)
                else:
                    await until_done(self._do_newest, "what users plan")

    async def _do_newest(self) -> None:
        chosen, older = newest(list(self._wishes.values()))
        for wish in older:
            self._answer(wish, SUPERSEDED, f"{chosen.name if chosen else ''} is newer")
        if chosen is not None:
            await self._do(chosen)
        await self._write_answers()

    async def refuse_rest(self) -> None:
        for wish in list(self._wishes.values()):
            self._answer(wish, REJECTED, "the job is over")
        try:
            await self._write_answers()
        except errors.TemporaryError as error:
            log.warning("cannot answer ScalePlans %s: %s", ", ".join(self._answers), error)

    async def _do(self, wish: UserPlan) -> None:
        if wish.plan is None:
            self._answer(wish, REJECTED, wish.trouble)
            return
        try:
            await self.ask(scale_request(wish.plan, wish.name))
        except errors.MasterUnreachable:
            raise
        except (errors.UserError, errors.JobFailed) as error:
            self._answer(wish, REJECTED, str(error))
        else:
            self._answer(wish, APPLIED, "the master has accepted the plan; the job's status shows the progress")

    def _answer(self, wish: UserPlan, phase: str, message: str) -> None:
        self._wishes.pop(wish.name, None)
        self._answers[wish.name] = {"phase": phase, "message": message, "appliedAt": kinds.timestamp(time.time())}

    async def _write_answers(self) -> None:
        for name, answer in list(self._answers.items()):
            try:
                await self._client.patch(SCALE_PLANS, name, {"status": answer}, subresource="status")
            except errors.NotFound:
                log.info("ScalePlan %s was deleted before it was answered", name)
            del self._answers[name]

    # ---- the job's own spec ----

    def begin(self) -> None:
        write_heeded(self._files, self._heeded)

    async def keep_spec(self) -> None:
        async for change in self._client.watch(ELASTIC_JOBS, fields=f"metadata.name={self._job.name}"):
            if change.what not in ("added", "changed") or self.agent is None:
                continue
            try:
                job = job_objects.read(change.thing)
            except errors.UserError as error:
                log.warning("the edited spec of the job is invalid: %s", error)
                continue
            if job.job.stopped:
                self.agent.stop("stopped by the user (spec.stopped)")
            if job.fault:
                log.warning(
                    "the edited spec of the job is invalid, and the job continues with the previous spec: %s",
                    job.fault,
                )
                continue
            self._latest, self._statuses.generation = job.job, job.generation
            self._changed.set()

    async def keep_numbers(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await until_done(self._do_spec, "the job's changed spec")

    async def _do_spec(self) -> None:
        latest = self._latest
        if self.status is None:
            raise errors.MasterUnreachable(f"job {self._job.name} has no status yet")
        try:
            for wanted in self._wanted(latest, self.status):
                if wanted.servers is not None and self.status.phase is JobPhase.STARTING:
                    raise errors.MasterUnreachable(f"job {self._job.name} is starting: its servers are not ready yet")
                await self.ask(wanted)
        except errors.MasterUnreachable:
            raise
        except (errors.UserError, errors.JobFailed) as error:
            log.warning("the job's changed spec cannot be applied: %s", error)
        self._heeded = latest
        write_heeded(self._files, latest)

    def _wanted(self, latest: ElasticJob, status: JobStatus) -> list[messages.BoundsRequest | messages.ScaleRequest]:
        requests: list[messages.BoundsRequest | messages.ScaleRequest | None]
        requests = [changed(self._heeded, latest, status, planned=self.capacity is not None)]
        if self.capacity is not None:
            limits = capacity.bounds(self.capacity, latest.workers, latest.servers, latest.quota)
            requests.insert(0, rebound(self._heeded, latest, limits))
        return [request for request in requests if request is not None]

    # ---- the master ----

    async def ask(self, request: Request) -> Reply:
        return await master_client.ask_master(self._files, request, secret=pathlib.Path(self._settings.secret_file))


class LeavingPods:
    """Announces pods that the cluster will evict, so that the master moves their work first."""

    def __init__(self, ask: Callable[[Request], Awaitable[Reply]], running: Callable[[], Collection[Life]]) -> None:
        self._ask, self._running = ask, running
        self._leaving: deque[tuple[Life, str]] = deque()
        self._noticed = asyncio.Event()

    def notice(self, life: Life, why: str) -> None:
        log.info("%s will be evicted: %s", life, why)
        self._leaving.append((life, why))
        self._noticed.set()

    async def keep_notices(self) -> None:
        """Announce the leaving pods one at a time, so that the job does not replace all of them at once."""
        while True:
            await self._noticed.wait()
            while self._leaving:
                life, why = self._leaving[0]
                while not await self._may_go(life, why):
                    await asyncio.sleep(PAUSE_S)
                self._leaving.popleft()
            self._noticed.clear()

    async def _may_go(self, life: Life, why: str) -> bool:
        if life not in self._running():
            return True
        try:
            reply = await self._ask(messages.EvictionNotice(life.role, life.incarnation, why))
        except (errors.UserError, errors.JobFailed) as error:
            log.info("cannot announce the eviction of %s to the master: %s", life, error)
            return True
        return isinstance(reply, messages.EvictionReply) and reply.free


async def until_done(work: Callable[[], Awaitable[None]], what: str) -> None:
    for attempt in itertools.count():
        try:
            await work()
            return
        except (errors.TemporaryError, errors.MasterUnreachable, OSError) as error:
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            log.warning("%s waits %g s: %s", what, pause_s, error)
            await asyncio.sleep(pause_s)
