"""Forwards requests to the master of a job on Kubernetes, from users and from the cluster.

In: ScalePlans of users, edits of the ElasticJob's spec, and pods that the cluster will evict. Out: requests to the
master, and a reply in the status of every plan. Next: `platforms.k8s.job.user_edits` decides, the master acts.
"""

import asyncio
import datetime
import itertools
import logging
import pathlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from springtide import config, errors, private_files
from springtide.domain.core.roles import Life
from springtide.domain.core.shape import ShapeBounds
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.agent import ask_master
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, SCALE_PLANS, Object
from springtide.platforms.k8s.job import user_edits
from springtide.platforms.k8s.job.job_status import StatusWriter
from springtide.platforms.k8s.objects import job_object
from springtide.platforms.k8s.objects.job_object import JobObject
from springtide.rpc.messages import messages
from springtide.telemetry import events, logs

if TYPE_CHECKING:
    from springtide.platforms.agent.agent import Agent


log = logging.getLogger(__name__)


def read_heeded(files: logs.RunFiles, now: ElasticJob) -> ElasticJob:
    """Return the spec that the last master went by; `now` if no master has started yet."""
    try:
        text = files.heeded.read_bytes() if files.journal.exists() else b""
        return schema.from_spec(msgspec.json.decode(text), now.name) if text else now
    except FileNotFoundError:  # journals of an earlier version have no such file
        return now
    except (OSError, msgspec.DecodeError, errors.BadInput) as error:
        log.warning("what was edited while no master was there is not known: %s: %s", files.heeded, error)
        return now


def write_heeded(files: logs.RunFiles, job: ElasticJob) -> None:
    try:
        private_files.replace(files.heeded, msgspec.json.encode(schema.spec_of(job)))
    except OSError as error:
        raise events.as_disk_error(error, files.heeded) from error


PAUSE_S = 1.0
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before the next attempt for a plan that the master or the cluster could not accept, by attempt."""


class UserRequests:
    """Requests of users for one job."""

    def __init__(
        self,
        client: Client,
        job: JobObject,
        files: logs.RunFiles,
        settings: config.Settings,
        statuses: StatusWriter,
    ) -> None:
        self._client, self._job, self._files, self._settings = client, job, files, settings
        self._statuses = statuses
        self.agent: Agent | None = None
        self.status: messages.JobStatus | None = None
        self._wishes: dict[str, user_edits.UserPlan] = {}
        self._answers: dict[str, Object] = {}
        """Replies to plans that are not written yet."""
        self._news = asyncio.Event()
        self._heeded, self._latest = read_heeded(files, job.job), job.job
        """The spec that the master uses, and the newest spec."""
        self._changed = asyncio.Event()
        self.limits: Callable[[ElasticJob], ShapeBounds] | None = None
        """Returns the bounds of a changed spec on this cluster; None if the job is not planned."""

    # ---- plans of users ----

    def user_plan(self, thing: Object) -> None:
        wish = user_edits.open_wish(thing)
        if wish is None or wish.name in self._answers:
            self._wishes.pop(thing["metadata"]["name"], None)
        else:
            self._wishes[wish.name] = wish
            self._news.set()

    async def keep_plans(self) -> None:
        while True:
            await self._news.wait()
            if self.status is None or not self._wishes:
                self._news.clear() if not self._wishes else None
                await asyncio.sleep(PAUSE_S / 10)
                continue
            self._news.clear()
            await until_done(self._do_newest, "what users plan")

    async def _do_newest(self) -> None:
        chosen, older = user_edits.newest(list(self._wishes.values()))
        for wish in older:
            self._answer(wish, user_edits.SUPERSEDED, f"{chosen.name if chosen else ''} came after it")
        if chosen is not None:
            await self._do(chosen)
        await self._say()

    async def refuse_rest(self) -> None:
        for wish in list(self._wishes.values()):
            self._answer(wish, user_edits.REJECTED, "the job is over")
        try:
            await self._say()
        except errors.TemporaryError as error:
            log.warning("ScalePlans %s are not answered: %s", ", ".join(self._answers), error)

    async def _do(self, wish: user_edits.UserPlan) -> None:
        if wish.plan is None:
            self._answer(wish, user_edits.REJECTED, wish.trouble)
            return
        try:
            await self.ask(user_edits.asked(wish.plan, wish.name))
        except errors.MasterUnreachable:
            raise
        except (errors.UserError, errors.JobFailed) as error:
            self._answer(wish, user_edits.REJECTED, str(error))
        else:
            self._answer(wish, user_edits.APPLIED, "the master has taken it; the job's status tells how far it is")

    def _answer(self, wish: user_edits.UserPlan, phase: str, message: str) -> None:
        self._wishes.pop(wish.name, None)
        at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._answers[wish.name] = {"phase": phase, "message": message, "appliedAt": at}

    async def _say(self) -> None:
        for name, said in list(self._answers.items()):
            try:
                await self._client.patch(SCALE_PLANS, name, {"status": said}, subresource="status")
            except errors.NotFound:
                log.info("ScalePlan %s is gone before it was answered", name)
            del self._answers[name]

    # ---- the job's own spec ----

    def begin(self) -> None:
        write_heeded(self._files, self._heeded)

    async def keep_spec(self) -> None:
        async for change in self._client.watch(ELASTIC_JOBS, fields=f"metadata.name={self._job.name}"):
            if change.what not in ("added", "changed") or self.agent is None:
                continue
            try:
                job = job_object.read(change.thing)
            except errors.UserError as error:
                log.warning("the job's spec was changed to what cannot be: %s", error)
                continue
            if job.job.stopped:
                self.agent.stop("stopped by the user (spec.stopped)")
            if job.fault:
                log.warning("the job's spec was changed to what cannot be, and it goes on as before: %s", job.fault)
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
            log.warning("the job's spec was changed, but: %s", error)
        self._heeded = latest
        write_heeded(self._files, latest)

    def _wanted(
        self, latest: ElasticJob, status: messages.JobStatus
    ) -> list[messages.BoundsRequest | messages.ScaleRequest]:
        scale = user_edits.changed(self._heeded, latest, status, planned=self.limits is not None)
        rebound = user_edits.rebound(self._heeded, latest, self.limits(latest)) if self.limits is not None else None
        return [wanted for wanted in (rebound, scale) if wanted is not None]

    # ---- the master ----

    async def ask(self, request: messages.Request) -> messages.Reply:
        return await ask_master.ask(self._files, request, secret=pathlib.Path(self._settings.secret_file))


class LeavingPods:
    """Announces pods that the cluster will evict, so that the master moves their work first."""

    def __init__(
        self,
        ask: Callable[[messages.Request], Awaitable[messages.Reply]],
        running: Callable[[], Collection[Life]],
    ) -> None:
        self._ask, self._running = ask, running
        self._leaving: deque[tuple[Life, str]] = deque()
        self._noticed = asyncio.Event()

    def notice(self, life: Life, why: str) -> None:
        log.info("%s is about to go: %s", life, why)
        self._leaving.append((life, why))
        self._noticed.set()

    async def keep_notices(self) -> None:
        """Announce leaving pods one at a time, so that not all of them are replaced at once."""
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
            said = await self._ask(messages.EvictionNotice(life.role, life.incarnation, why))
        except (errors.UserError, errors.JobFailed) as error:
            log.info("%s goes without a word to the master: %s", life, error)
            return True
        return isinstance(said, messages.EvictionReply) and said.free


async def until_done(work: Callable[[], Awaitable[None]], what: str) -> None:
    for attempt in itertools.count():
        try:
            await work()
            return
        except (errors.TemporaryError, errors.MasterUnreachable, OSError) as error:
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            log.warning("%s waits %g s: %s", what, pause_s, error)
            await asyncio.sleep(pause_s)
