"""Supervises one job: keeps the master running, starts the roles that the master wants, and reports exits.

Roles are not children of the master, so the agent can replace the master without touching the roles. A new master or
agent needs no history of earlier orders, because `platforms.agent.reconcile` compares the running roles with the
wanted roles.
"""

import asyncio
import contextlib
import datetime
import logging
import os
import pathlib
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from springtide import errors, private_files
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, RoleExit, RoleKind, RoleUsage, WantedRole
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.agent import credentials, master_keeper, reconcile, run_plan
from springtide.platforms.agent.master_keeper import START_S, AwakeClock, MasterSupervisor, NextTerm, Result
from springtide.platforms.agent.platform_api import Platform, RoleLaunch
from springtide.platforms.agent.reconcile import POLITE_S
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.rpc.transport import connection
from springtide.rpc.transport.addresses import MasterLocation
from springtide.telemetry import events, logs, output
from springtide.telemetry.host import usage

log = logging.getLogger(__name__)

LOOK_S = 0.1  # seconds between two polls of the master
MEASURE_S = 0.2  # seconds between two readings of the roles' usage, from which the master detects throttled servers


class Killed(Exception):
    """Raised when the user kills the job instead of waiting until it has drained."""


async def nothing() -> None:
    """Wait for nothing."""


class DrainRequest:
    """A request to drain the job: the reason, the time, and whether the master knows of the request."""

    def __init__(self, awake: AwakeClock) -> None:
        self._awake = awake
        self.why = ""
        self.told = False
        self._asked_at: float | None = None

    def ask(self, why: str) -> None:
        if not self.why:
            self.why = why
            self._asked_at = self._awake.now()

    def follow(self, status: JobStatus) -> None:
        if status.phase is JobPhase.DRAINING and self._asked_at is None:
            self._asked_at = self._awake.now()  # another command requested the drain
        if status.checkpoints.saving_last and self._asked_at is not None:
            # restart the time limit, because the workers have ended and the last checkpoint takes time
            self._asked_at = self._awake.now()

    def overdue(self, grace_s: float) -> bool:
        return self._asked_at is not None and self._awake.now() - self._asked_at > grace_s


class UsageMeter:
    """CPU and memory of the running roles, read at most every `MEASURE_S` seconds."""

    def __init__(self, platforms: Sequence[Platform]) -> None:
        self._platforms = platforms
        self._read_at = 0.0
        self._usage: tuple[RoleUsage, ...] = ()

    def read(self) -> tuple[RoleUsage, ...]:
        if time.monotonic() >= self._read_at + MEASURE_S:
            self._read_at = time.monotonic()
            self._usage = tuple(
                usage.of_role(life, *used) for platform in self._platforms for life, used in platform.usage().items()
            )
        return self._usage


class Agent:
    """Runs one job on a platform. The job's masters run on the separate platform `masters`, if `masters` is given.
    `say` gets messages for the user.
    """

    def __init__(
        self,
        plan: RunPlan,
        files: logs.RunFiles,
        platform: Platform,
        say: Callable[[str], None] = lambda _: None,
        *,
        masters: Platform | None = None,
        next_term: NextTerm | None = None,
    ) -> None:
        self.plan, self._files, self._say = plan, files, say
        output.remember(
            msgspec.json.encode(plan.spec).decode(),
            *output.option_pairs(plan.arguments),
            *plan.settings.values(),
            variables=plan.environment,
        )
        self._awake = AwakeClock()
        self._platforms = (platform,) if masters is None else (platform, masters)
        self._keeper = MasterSupervisor(
            self._platforms[-1],
            files,
            lambda life: self._launch(life, ProcessLimits(), host=plan.advertise),
            next_term or master_keeper.counting(),
            awake=self._awake,
            silence_s=plan.spec.silence_s,
            disk_s=plan.spec.disk_s,
            say=say,
        )
        self._story: events.EventLog | None = None
        self._reconciler = reconcile.Reconciler()
        self._exits: deque[RoleExit] = deque()
        self._news = asyncio.Event()
        self._where = MasterLocation()
        self._meter = UsageMeter(self._platforms)
        self._stop = DrainRequest(self._awake)
        self._killed = asyncio.Event()
        self._last = JobStatus(name=plan.spec.name, phase=JobPhase.STARTING, why="", elapsed_s=0.0)

    @property
    def _platform(self) -> Platform:
        return self._platforms[0]

    @property
    def _secret(self) -> pathlib.Path:
        return pathlib.Path(self.plan.secret_file) if self.plan.secret_file else self._files.secret

    def stop(self, why: str) -> None:
        self._stop.ask(why)

    def kill(self) -> None:
        self._killed.set()

    async def run(
        self, on_status: Callable[[JobStatus], None], *, before_roles: Callable[[], Coroutine[Any, Any, None]] = nothing
    ) -> JobStatus:
        """Run the job to its end and return the last status.

        The first roles start after `before_roles` returns. If this agent is cancelled or `Fenced`, do not stop roles
        that can outlive it.
        """
        if self.plan.adopt:
            await self._keeper.until_room()
        if not self.plan.secret_file:
            write_secret(self._files, keep=self.plan.adopt)
        if self.plan.tls and not (self.plan.adopt and self._files.tls.exists()):
            write_certificates(self.plan.spec.name, self._files)
        write_card(self.plan, self._files)
        # only this user may read the file, because URLs in it may contain passwords
        with events.disk_errors(self._files.spec):
            private_files.replace(self._files.spec, msgspec.json.encode(self.plan.spec))
        status = self._last
        try:
            if self.plan.adopt:
                self._adopt()
            status = await self._run(on_status, before_roles)
            return status
        except errors.Fenced:
            raise
        except errors.SpringtideError as error:
            status = msgspec.structs.replace(self._last, phase=JobPhase.FAILED, why=str(error), blame=blame_of(error))
            raise
        except BaseException as error:  # this agent has failed, and another agent may take over the job
            if not self.plan.adopt:
                why = f"the job's agent failed: {type(error).__name__}: {error}".rstrip(": ")
                status = msgspec.structs.replace(self._last, phase=JobPhase.FAILED, why=why, blame=Blame.INFRASTRUCTURE)
            raise
        finally:
            if status.phase.over or not self.plan.adopt:
                for platform in self._platforms:
                    platform.close()
                self._files.secret.unlink(missing_ok=True)
                self._files.spec.unlink(missing_ok=True)
                shutil.rmtree(self._files.tls, ignore_errors=True)
                self._log_event("ended", status=msgspec.to_builtins(status))
            else:
                for platform in reversed(self._platforms):
                    platform.leave()
            self._close_event_log()

    def _adopt(self) -> None:
        found = self._platform.adopt(self._ended)
        if found:
            log.info("took over %s", ", ".join(str(life) for life in sorted(found)))
            self._log_event("agent_took_over", roles=[str(life) for life in sorted(found)])

    async def _run(
        self, on_status: Callable[[JobStatus], None], before_roles: Callable[[], Coroutine[Any, Any, None]]
    ) -> JobStatus:
        try:
            while True:
                try:
                    if not self._keeper.term:
                        self._where = await self._unless_killed(self._keeper.start())
                        await self._unless_killed(before_roles())
                    return await self._attend(on_status)
                except errors.MasterUnreachable as error:
                    await self._replace_master(error)
        except Killed:
            return msgspec.structs.replace(self._last, phase=JobPhase.STOPPED, why="killed")
        except MasterLost as error:
            return msgspec.structs.replace(
                self._last, phase=JobPhase.FAILED, why=str(error), blame=Blame.INFRASTRUCTURE
            )

    # ---- watching ----

    async def _attend(self, on_status: Callable[[JobStatus], None]) -> JobStatus:
        secret = bytes.fromhex(self._secret.read_text().strip())
        near = self._where.local or self._where.address
        connecting = connection.connect(near, secret, within_s=START_S, certificates=self._files.certificates())
        master = await self._unless_killed(self._keeper.while_alive(connecting))
        self._stop.told = False
        try:
            await self._ask(master, messages.JoinAgent(os.getpid()))
            status = await self._watch(master, on_status)
            if not self._killed.is_set():
                await self._wind_down(master, status)
            return status
        finally:
            await master.close()

    async def _watch(self, master: connection.RpcConnection, on_status: Callable[[JobStatus], None]) -> JobStatus:
        while True:
            await self._tell_exits(master)
            if self._stop.why and not self._stop.told:
                # the master refuses requests at the moment, and the next poll repeats this request
                with contextlib.suppress(errors.TemporaryError):
                    await self._ask(master, messages.StopRequest(self._stop.why))
                    self._stop.told = True
            outlook = await self._ask(master, messages.AgentPoll(self._meter.read()))
            assert isinstance(outlook, messages.AgentOrders)
            status = self._last = outlook.status
            self._stop.follow(status)
            on_status(status)
            if status.phase.over:
                return status
            if self._stop.overdue(self.plan.grace_s):
                self._killed.set()
                why = f"workers did not stop within {self.plan.grace_s:g} s and were killed"
                return msgspec.structs.replace(status, phase=JobPhase.STOPPED, why=why)
            self._bring_about(outlook.wanted)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)
            self._news.clear()

    async def _tell_exits(self, master: connection.RpcConnection) -> None:
        """Report exits to the master. Hold each exit until a master has journaled it."""
        with contextlib.suppress(errors.TemporaryError):
            while self._exits:
                await self._ask(master, messages.RoleExitReport(self._exits[0]))
                self._exits.popleft()

    async def _ask(self, master: connection.RpcConnection, request: Request) -> Reply:
        """Send the master a request. Give up when the master is silent for too long, or when the user kills the job."""
        return await self._unless_killed(self._keeper.reply(master.ask(request)))

    async def _unless_killed(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await master_keeper.unless(self._killed, work, Killed)

    async def _replace_master(self, error: errors.MasterUnreachable) -> None:
        began = time.monotonic()
        try:
            self._where = await self._unless_killed(self._keeper.replace(error))
        except errors.Fenced:
            raise
        except (errors.JobFailed, errors.UserError) as failure:
            raise MasterLost(str(failure)) from failure
        seconds, term, why = time.monotonic() - began, self._keeper.term, self._keeper.why_replaced
        self._say(f"{why}; another (term {term}) listens after {seconds:.1f} s")
        self._log_event("master_replaced", why=why, term=term, seconds=round(seconds, 3))

    # ---- requests of the master ----

    def _bring_about(self, wanted: tuple[WantedRole, ...]) -> None:
        lives = [life for life in self._platform.running() if life.role.kind is not RoleKind.MASTER]
        for step in self._reconciler.steps(wanted, lives, at=self._awake.now()):
            match step:
                case reconcile.StartRole(role):
                    self._platform.start(self._role_launch(role), self._ended)
                case reconcile.ResizeRole(role):
                    limits = ProcessLimits(cpu=role.cpu, memory=role.memory)
                    held = self._platform.hold(Life(role.role, role.incarnation), limits)
                    log.info("%s: %s %s", role.role, limits, "from now on" if held else "from its next life on")
                case reconcile.StopRole(life, kill, why):
                    log.info("%s %s: %s", "killing" if kill else "ending", life, why)
                    self._platform.stop(life, kill=kill)
                case reconcile.LostRole(life):
                    log.info("%s has ended while no agent was watching", life)
                    self._ended(RoleExit(role=life.role, incarnation=life.incarnation, pid=0, evicted=True))

    def _ended(self, ended: RoleExit) -> None:
        self._exits.append(ended)
        self._news.set()

    def _role_launch(self, wanted: WantedRole) -> RoleLaunch:
        return self._launch(
            Life(wanted.role, wanted.incarnation),
            ProcessLimits(cpu=wanted.cpu, memory=wanted.memory, gpu=run_plan.gpu_of(self.plan.spec, wanted.role)),
            master=self._where.address,
            master_file=str(self._files.master.absolute()),
            master_patience_s=run_plan.PATIENCE_S if self.plan.adopt else None,
        )

    def _launch(self, life: Life, limits: ProcessLimits, **settings: str | float | None) -> RoleLaunch:
        plan, kind = self.plan, life.role.kind
        return RoleLaunch(
            life=life,
            module=run_plan.MODULES[kind],
            limits=limits,
            arguments=run_plan.arguments_of(kind, plan, root=str(self._files.root)),
            settings=run_plan.settings_of(
                life,
                plan.settings,
                plan.arguments,
                secret_file=str(self._secret.absolute()),
                tls=self._files.certificates(kind),
                debug=int(plan.debug),
                report_usage="1" if plan.report_usage else "",
                **settings,
            ),
            environment=run_plan.environment_of(plan, limits),
            given=plan.environment,
        )

    def _log_event(self, kind: str, **fields: Any) -> None:
        """Log an event that no master can log. Agent and master can share the file, because each appends whole
        lines."""
        try:
            self._story = self._story or events.EventLog(self._files.events)
            self._story.write(kind, **fields)
        except OSError as error:  # ignore the error, because a lost event must not fail the job
            log.warning("event %s is not logged: %s", kind, error)

    def _close_event_log(self) -> None:
        try:
            if self._story is not None:
                self._story.close()
        except errors.UserError as error:
            log.warning("the last events are not logged: %s", error)

    # ---- ending ----

    async def _wind_down(self, master: connection.RpcConnection, status: JobStatus) -> None:
        """End the job's roles, workers first, because a worker that saves its model still needs servers."""
        grace_s = 0.0 if status.phase is JobPhase.FAILED else self.plan.grace_s
        # ignore errors, because the outcome of the job is already known
        with contextlib.suppress(errors.MasterUnreachable, errors.TemporaryError, Killed):
            await self._end(master, RoleKind.WORKER, wait_s=grace_s)
            await self._end(master, RoleKind.DATA_WORKER, wait_s=0.0)
            await self._end(master, RoleKind.SERVER, wait_s=0.0)
            await self._ask(master, messages.ShutdownRequest())

    async def _end(self, master: connection.RpcConnection, kind: RoleKind, *, wait_s: float) -> None:
        for kill in (False, True):
            await self._until_gone(kind, wait_s)
            for life in self._of_kind(kind):
                log.info("%s %s", "killing" if kill else "ending", life)
                self._platform.stop(life, kill=kill)
            wait_s = POLITE_S
        await self._until_gone(kind, wait_s)
        await self._tell_exits(master)

    async def _until_gone(self, kind: RoleKind, wait_s: float) -> None:
        deadline = self._awake.now() + wait_s
        while self._of_kind(kind) and self._awake.now() < deadline and not self._killed.is_set():
            await asyncio.sleep(0.01)

    def _of_kind(self, kind: RoleKind) -> list[Life]:
        return [life for life in self._platform.running() if life.role.kind is kind]


def blame_of(error: errors.SpringtideError) -> Blame:
    return Blame.USER if isinstance(error, errors.UserError) else Blame.INFRASTRUCTURE


class MasterLost(Exception):
    """Raised when no master runs and no further master will start."""


def write_card(plan: RunPlan, files: logs.RunFiles) -> None:
    pid = os.getpid()
    before = logs.read_card(files) if plan.adopt else None
    card = logs.RunCard(
        name=plan.spec.name,
        script=plan.script,
        arguments=output.redact_arguments(plan.arguments),
        began_at=time.time() if before is None else before.began_at,
        agent_pid=pid,
        agent_start=logs.start_of(pid) or 0,
    )
    with events.disk_errors(files.card):
        logs.write_card(files, card)


def write_secret(files: logs.RunFiles, *, keep: bool = False) -> None:
    if keep and files.secret.exists():
        return
    with events.disk_errors(files.secret):
        private_files.replace(files.secret, secrets.token_hex(32).encode())


def write_certificates(job: str, files: logs.RunFiles) -> None:
    unfinished = files.tls.with_suffix(".part")
    with events.disk_errors(files.tls):
        shutil.rmtree(unfinished, ignore_errors=True)
        credentials.lay_out(credentials.make(job, at=datetime.datetime.now(datetime.UTC)), unfinished)
        unfinished.rename(files.tls)
