"""The agent of a host: keeps the master running and the roles that the master wants, says who has ended, cleans up.

In: a `RunPlan` from `cli.run`. Out: the job's last `JobStatus`, and one for every look at it on the way. No role is a
child of the master, so the master can be replaced (`platforms.keeper`) without touching the others. What runs is
brought to what the master wants by `platforms.reconcile`: a master that takes over need not know of earlier orders.
"""

import asyncio
import contextlib
import datetime
import logging
import math
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from springtide import errors
from springtide.domain.cluster import Life, RoleExit, RoleKind, RoleUsage, WantedRole
from springtide.domain.job import Blame, JobSpec, Phase
from springtide.domain.resources import Limits
from springtide.platforms import credentials, reconcile, waiting
from springtide.platforms.base import Launch, Platform
from springtide.platforms.keeper import START_S, Keeper
from springtide.platforms.reconcile import POLITE_S
from springtide.platforms.waiting import Result
from springtide.rpc import connection, messages
from springtide.telemetry import events, logs, runs

log = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks at the job: ends are noticed within this time
MEASURE_S = 0.2  # between two readings of what each role takes: a server that is held up is found by them


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """All that an agent must know to run a job."""

    spec: JobSpec
    script: str
    arguments: tuple[str, ...] = ()
    threads_per_worker: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    """The master's port; 0 takes a free one."""
    grace_s: float = 30.0
    """How long workers may take to finish the batch in hand, and to leave after the job's end."""
    debug: bool = False
    tls: bool = False
    """Whether all roles speak by TLS, with certificates that are made for this run and lie in its folder."""


class Killed(Exception):
    """The user does not want to wait any longer."""


class Agent:
    """Runs one job on a platform. `say` gets what the user should know at once."""

    def __init__(
        self, plan: RunPlan, files: logs.RunFiles, platform: Platform, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.plan, self._files, self._platform, self._say = plan, files, platform, say
        self._keeper = Keeper(platform, files, self._master_launch)
        self._reconciler = reconcile.Reconciler()
        self._exits: deque[RoleExit] = deque()
        self._news = asyncio.Event()
        self._address = ""
        self._measured: tuple[RoleUsage, ...] = ()
        self._measured_at = 0.0
        self._stop_why = ""
        self._stop_asked_at: float | None = None
        self._stop_told = False
        self._killed = asyncio.Event()
        self._last = messages.JobStatus(name=plan.spec.name, phase=Phase.STARTING, why="", elapsed_s=0.0)

    def stop(self, why: str) -> None:
        """Drain the job: workers finish the batch in hand."""
        if not self._stop_why:
            self._stop_why = why
            self._stop_asked_at = time.monotonic()

    def kill(self) -> None:
        """Do not wait for anyone."""
        self._killed.set()

    async def run(self, on_status: Callable[[messages.JobStatus], None]) -> messages.JobStatus:
        """Start everything, watch until the job is over, clean up; the last status."""
        write_secret(self._files)
        if self.plan.tls:
            write_certificates(self.plan.spec.name, self._files)
        write_card(self.plan, self._files)
        status = self._last
        try:
            status = await self._run(on_status)
            return status
        except errors.SpringtideError as error:
            status = msgspec.structs.replace(self._last, phase=Phase.FAILED, why=str(error), blame=blame_of(error))
            raise
        finally:
            self._platform.close()
            self._files.secret.unlink(missing_ok=True)
            shutil.rmtree(self._files.tls, ignore_errors=True)
            self._tell_end(status)

    async def _run(self, on_status: Callable[[messages.JobStatus], None]) -> messages.JobStatus:
        try:
            while True:
                try:
                    if not self._keeper.term:
                        self._address = await self._unless_killed(self._keeper.start())
                    return await self._attend(on_status)
                except errors.MasterUnreachable as error:
                    await self._replace_master(error)
        except Killed:
            return msgspec.structs.replace(self._last, phase=Phase.STOPPED, why="killed")
        except MasterLost as error:
            return msgspec.structs.replace(self._last, phase=Phase.FAILED, why=str(error), blame=Blame.INFRASTRUCTURE)

    # ---- watching ----

    async def _attend(self, on_status: Callable[[messages.JobStatus], None]) -> messages.JobStatus:
        """Talk to one master until the job is over, or to its end."""
        secret = bytes.fromhex(self._files.secret.read_text())
        master = await self._unless_killed(
            self._keeper.while_alive(
                connection.connect(self._address, secret, within_s=START_S, certificates=self._files.certificates())
            )
        )
        self._stop_told = False
        try:
            await self._ask(master, messages.JoinAgent(os.getpid()))
            status = await self._watch(master, on_status)
            if not self._killed.is_set():
                await self._wind_down(master, status)
            return status
        finally:
            await master.close()

    async def _watch(
        self, master: connection.Connection, on_status: Callable[[messages.JobStatus], None]
    ) -> messages.JobStatus:
        while True:
            await self._tell_exits(master)
            if self._stop_why and not self._stop_told:
                await self._ask(master, messages.Stop(self._stop_why))
                self._stop_told = True
            outlook = await self._ask(master, messages.Look(self._measure()))
            assert isinstance(outlook, messages.Outlook)
            status = self._last = outlook.status
            if status.phase is Phase.DRAINING and self._stop_asked_at is None:
                self._stop_asked_at = time.monotonic()  # by another command
            if status.saving_last and self._stop_asked_at is not None:
                self._stop_asked_at = time.monotonic()  # workers have ended: what is written now takes its time
            on_status(status)
            if status.phase.over:
                return status
            if self._too_slow_to_stop():
                self._killed.set()
                why = f"workers did not stop within {self.plan.grace_s:g} s and were killed"
                return msgspec.structs.replace(status, phase=Phase.STOPPED, why=why)
            self._bring_about(outlook.wanted)
            await self._until_news()

    async def _until_news(self) -> None:
        """A tenth of a second, or until a process ends: its work should be with others soon."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), LOOK_S)
        self._news.clear()

    def _too_slow_to_stop(self) -> bool:
        return self._stop_asked_at is not None and time.monotonic() - self._stop_asked_at > self.plan.grace_s

    async def _tell_exits(self, master: connection.Connection) -> None:
        """Each is forgotten when a master has taken note of it, not before."""
        while self._exits:
            await self._ask(master, messages.Exited(self._exits[0]))
            self._exits.popleft()

    async def _ask(self, master: connection.Connection, request: messages.Request) -> messages.Reply:
        """Ask the master, but neither for ever nor when the user has had enough."""
        silence_s = self.plan.spec.silence_s
        try:
            async with asyncio.timeout(silence_s):
                return await self._unless_killed(master.ask(request))
        except TimeoutError:
            raise errors.MasterUnreachable(
                f"the master has been silent for {silence_s:g} s: its process hangs or is stopped"
            ) from None

    async def _unless_killed(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for something until the user has had enough."""
        return await waiting.unless(self._killed, work, Killed)

    async def _replace_master(self, error: errors.MasterUnreachable) -> None:
        """The master has died, is dying, or hangs: roles go on meanwhile."""
        began = time.monotonic()
        try:
            self._address = await self._unless_killed(self._keeper.replace(error))
        except (errors.JobFailed, errors.UserError) as failure:
            raise MasterLost(str(failure)) from failure
        seconds, term, why = time.monotonic() - began, self._keeper.term, self._keeper.why_replaced
        self._say(f"{why}; another (term {term}) listens after {seconds:.1f} s")
        self._tell("master_replaced", why=why, term=term, seconds=round(seconds, 3))

    # ---- what the master wants ----

    def _bring_about(self, wanted: tuple[WantedRole, ...]) -> None:
        lives = [life for life in self._platform.running() if life.role.kind is not RoleKind.MASTER]
        for step in self._reconciler.steps(wanted, lives, at=time.monotonic()):
            match step:
                case reconcile.Start(each):
                    self._platform.start(self._role_launch(each), self._ended)
                case reconcile.Hold(each):
                    limits = Limits(cpu=each.cpu, memory=each.memory, low=each.low)
                    held = self._platform.hold(Life(each.role, each.incarnation), limits)
                    log.info("%s: %s %s", each.role, limits, "from now on" if held else "from its next life on")
                case reconcile.End(life, kill, why):
                    log.info("%s %s: %s", "killing" if kill else "ending", life, why)
                    self._platform.stop(life, kill=kill)

    def _ended(self, ended: RoleExit) -> None:
        self._exits.append(ended)
        self._news.set()

    def _measure(self) -> tuple[RoleUsage, ...]:
        if time.monotonic() >= self._measured_at + MEASURE_S:
            self._measured_at = time.monotonic()
            self._measured = tuple(
                RoleUsage(
                    role=life.role, incarnation=life.incarnation, cpu_s=usage.cpu_s, memory=usage.memory,
                    cpu_limit=limits.cpu, memory_limit=limits.memory, throttled_s=usage.throttled_s,
                )
                for life, (usage, limits) in self._platform.usage().items()
            )  # fmt: skip
        return self._measured

    def _role_launch(self, wanted: WantedRole) -> Launch:
        life = Life(wanted.role, wanted.incarnation)
        limits = Limits(cpu=wanted.cpu, memory=wanted.memory, low=wanted.low)
        if wanted.role.kind is RoleKind.SERVER:
            return self._launch(life, "springtide.embedding.server_process", (), limits)
        if wanted.role.kind is RoleKind.DATA_WORKER:
            return self._launch(life, "springtide.prep.main", (), limits)
        return self._launch(life, "springtide.train.runner", (self.plan.script, *self.plan.arguments), limits)

    def _master_launch(self, life: Life) -> Launch:
        plan = self.plan
        spec = msgspec.json.encode(plan.spec).decode()
        arguments = (spec, str(self._files.root), plan.host, str(plan.port))
        return self._launch(life, "springtide.master.main", arguments, Limits())

    def _launch(self, life: Life, module: str, arguments: tuple[str, ...], limits: Limits) -> Launch:
        settings = {
            "member": str(life.role),
            "incarnation": str(life.incarnation),
            "master": self._address,
            "master_file": str(self._files.master.absolute()),
            "secret_file": str(self._files.secret.absolute()),
            "tls": self._files.certificates(life.role.kind),
            "debug": str(int(self.plan.debug)),
        }
        threads = self.plan.threads_per_worker  # more than it has cores would only stand in each other's way
        threads = threads if limits.cpu is None else max(1, min(threads, math.ceil(limits.cpu)))
        environment = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        return Launch(
            life=life, module=module, arguments=arguments, settings=settings, environment=environment, limits=limits
        )

    # ---- the story ----

    def _tell(self, kind: str, **fields: Any) -> None:
        """Add to the story what no master can tell: lines are written whole, so two writers do no harm."""
        try:
            story = events.EventLog(self._files.events)
            story.write(kind, **fields)
            story.close()
        except (OSError, errors.UserError) as error:  # the job's outcome matters more
            log.warning("the story misses %s: %s", kind, error)

    def _tell_end(self, status: messages.JobStatus) -> None:
        """The last line of the story is the last status, for those who ask later."""
        self._tell("ended", status=msgspec.to_builtins(status))

    # ---- ending ----

    async def _wind_down(self, master: connection.Connection, status: messages.JobStatus) -> None:
        """Workers first, then servers: a worker that still saves its model needs them. The story tells their ends."""
        grace_s = 0.0 if status.phase is Phase.FAILED else self.plan.grace_s
        with contextlib.suppress(errors.MasterUnreachable, Killed):  # how the job ended is known
            await self._end(master, RoleKind.WORKER, wait_s=grace_s)
            await self._end(master, RoleKind.DATA_WORKER, wait_s=0.0)
            await self._end(master, RoleKind.SERVER, wait_s=0.0)
            await self._ask(master, messages.Shutdown())

    async def _end(self, master: connection.Connection, kind: RoleKind, *, wait_s: float) -> None:
        for kill in (False, True):
            await self._until_gone(kind, wait_s)
            for life in self._of_kind(kind):
                log.info("%s %s", "killing" if kill else "ending", life)
                self._platform.stop(life, kill=kill)
            wait_s = POLITE_S
        await self._until_gone(kind, wait_s)
        await self._tell_exits(master)

    async def _until_gone(self, kind: RoleKind, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while self._of_kind(kind) and time.monotonic() < deadline and not self._killed.is_set():
            await asyncio.sleep(0.01)

    def _of_kind(self, kind: RoleKind) -> list[Life]:
        return [life for life in self._platform.running() if life.role.kind is kind]


def blame_of(error: errors.SpringtideError) -> Blame:
    """Whose fault it is that a job did not even start."""
    return Blame.USER if isinstance(error, errors.UserError) else Blame.INFRASTRUCTURE


class MasterLost(Exception):
    """There is no master and there will be none: nothing can be asked any more, only said."""


def write_card(plan: RunPlan, files: logs.RunFiles) -> None:
    """Say who runs this job, so that other commands find it."""
    pid = os.getpid()
    card = runs.RunCard(
        name=plan.spec.name, script=plan.script, arguments=plan.arguments, began_at=time.time(),
        agent_pid=pid, agent_start=runs.start_of(pid) or 0,
    )  # fmt: skip
    try:
        runs.write_card(files, card)
    except OSError as error:
        raise events.as_disk_error(error, files.card) from error


def write_secret(files: logs.RunFiles) -> None:
    """Draw the job's secret and write it where only this user can read it."""
    try:
        handle = os.open(files.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as file:
            file.write(secrets.token_hex(32))
    except OSError as error:
        raise events.as_disk_error(error, files.secret) from error


def write_certificates(job: str, files: logs.RunFiles) -> None:
    """An authority for this run and a certificate for each kind of role, where only this user can read them."""
    try:
        credentials.lay_out(credentials.make(job, at=datetime.datetime.now(datetime.UTC)), files.tls)
    except OSError as error:
        raise events.as_disk_error(error, files.tls) from error
