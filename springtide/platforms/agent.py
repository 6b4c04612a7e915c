"""The agent of a host: starts the master and all roles of a job, tells the master who has ended, cleans up.

In: a `RunPlan` from `cli.run`. Out: the job's last `JobStatus`, and one for every look at it on the way. No role is a
child of the master, so the master can be replaced without touching the others.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from springtide import errors
from springtide.domain.cluster import Role, RoleExit, RoleKind
from springtide.domain.job import Blame, JobSpec, Phase
from springtide.platforms.base import Launch, Platform
from springtide.rpc import connection, messages
from springtide.telemetry import events, logs

log = logging.getLogger(__name__)

MASTER_START_S = 60.0  # a Python process on a busy machine; the wait ends at once when it dies
LOOK_S = 0.1  # between two looks at the job: ends are noticed within this time
POLITE_S = 5.0  # between asking a role to end and ending it


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


class Killed(Exception):
    """The user does not want to wait any longer."""


class Agent:
    """Runs one job on a platform."""

    def __init__(self, plan: RunPlan, files: logs.RunFiles, platform: Platform) -> None:
        self.plan, self._files, self._platform = plan, files, platform
        self._exits: asyncio.Queue[RoleExit] = asyncio.Queue()
        self._master_exit: RoleExit | None = None
        self._stop_why = ""
        self._stop_sent_at: float | None = None
        self._killed = asyncio.Event()
        self._last = messages.JobStatus(name=plan.spec.name, phase=Phase.STARTING, why="", elapsed_s=0.0)

    def stop(self, why: str) -> None:
        """Drain the job: workers finish the batch in hand."""
        self._stop_why = self._stop_why or why

    def kill(self) -> None:
        """Do not wait for anyone."""
        self._killed.set()

    async def run(self, on_status: Callable[[messages.JobStatus], None]) -> messages.JobStatus:
        """Start everything, watch until the job is over, clean up; the last status."""
        write_secret(self._files)
        try:
            address = await self._start_master()
            return await self._run_job(address, on_status)
        finally:
            self._platform.close()
            self._files.secret.unlink(missing_ok=True)

    # ---- starting ----

    async def _start_master(self) -> str:
        plan = self.plan
        spec = msgspec.json.encode(plan.spec).decode()
        arguments = (spec, str(self._files.root), plan.host, str(plan.port))
        self._launch(Role(RoleKind.MASTER), "springtide.master.main", arguments, {})
        deadline = time.monotonic() + MASTER_START_S
        while not self._files.master.exists():
            if self._master_exit or time.monotonic() > deadline:
                how = str(self._master_exit or f"it did not listen within {MASTER_START_S:g} s")
                raise errors.JobFailed(f"the master did not start: {how}. See {self._log_of(Role(RoleKind.MASTER))}")
            await asyncio.sleep(0.01)
        said = msgspec.json.decode(self._files.master.read_bytes(), type=dict[str, str])
        if "error" in said:
            raise connection.as_error(messages.Refused(said["kind"], said["error"]))
        return said["address"]

    def _start_roles(self, address: str) -> None:
        plan = self.plan
        for rank in range(plan.spec.servers):
            self._launch(Role(RoleKind.SERVER, rank), "springtide.embedding.server_process", (), {"master": address})
        for rank in range(plan.spec.workers):
            arguments = (plan.script, *plan.arguments)
            self._launch(Role(RoleKind.WORKER, rank), "springtide.train.runner", arguments, {"master": address})

    def _launch(self, role: Role, module: str, arguments: tuple[str, ...], settings: dict[str, str]) -> None:
        settings = {
            **settings,
            "member": str(role),
            "secret_file": str(self._files.secret.absolute()),
            "debug": str(int(self.plan.debug)),
        }
        environment = {"OMP_NUM_THREADS": str(self.plan.threads_per_worker), "PYTHONUNBUFFERED": "1"}
        launch = Launch(role=role, module=module, arguments=arguments, settings=settings, environment=environment)
        self._platform.start(launch, self._ended)

    def _ended(self, ended: RoleExit) -> None:
        if ended.role.kind is RoleKind.MASTER:
            self._master_exit = ended
        else:
            self._exits.put_nowait(ended)

    # ---- watching ----

    async def _run_job(self, address: str, on_status: Callable[[messages.JobStatus], None]) -> messages.JobStatus:
        master = await connection.connect(address, self._files_secret(), within_s=MASTER_START_S)
        try:
            await self._ask(master, messages.JoinAgent(os.getpid()))
            self._start_roles(address)
            status = await self._watch(master, on_status)
            if not self._killed.is_set():
                await self._wind_down(master, status)
                await self._ask(master, messages.Shutdown())
            return status
        except Killed:
            return msgspec.structs.replace(self._last, phase=Phase.STOPPED, why="killed")
        except errors.MasterUnreachable as error:
            return await self._without_master(error)
        finally:
            await master.close()

    async def _watch(
        self, master: connection.Connection, on_status: Callable[[messages.JobStatus], None]
    ) -> messages.JobStatus:
        while True:
            await self._tell_exits(master)
            if self._stop_why and self._stop_sent_at is None:
                self._stop_sent_at = time.monotonic()
                await self._ask(master, messages.Stop(self._stop_why))
            status = await self._ask(master, messages.StatusRequest())
            assert isinstance(status, messages.JobStatus)
            self._last = status
            on_status(status)
            if status.phase.over:
                return status
            if self._too_slow_to_stop():
                self._killed.set()
                why = f"workers did not stop within {self.plan.grace_s:g} s and were killed"
                return msgspec.structs.replace(status, phase=Phase.STOPPED, why=why)
            await asyncio.sleep(LOOK_S)

    def _too_slow_to_stop(self) -> bool:
        return self._stop_sent_at is not None and time.monotonic() - self._stop_sent_at > self.plan.grace_s

    async def _tell_exits(self, master: connection.Connection) -> None:
        while not self._exits.empty():
            await self._ask(master, messages.Exited(self._exits.get_nowait()))

    async def _ask(self, master: connection.Connection, request: messages.Request) -> messages.Reply:
        """Ask the master, but neither for ever nor when the user has had enough."""
        asking = asyncio.create_task(master.ask(request))
        killed = asyncio.create_task(self._killed.wait())
        silence_s = self.plan.spec.silence_s
        await asyncio.wait({asking, killed}, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if asking.done():
            return asking.result()
        asking.cancel()
        if self._killed.is_set():
            raise Killed
        raise errors.MasterUnreachable(
            f"the master has been silent for {silence_s:g} s: its process hangs or is stopped"
        )

    # ---- ending ----

    async def _wind_down(self, master: connection.Connection, status: messages.JobStatus) -> None:
        """Workers first, then servers: a worker that still saves its model needs them."""
        grace_s = 0.0 if status.phase is Phase.FAILED else self.plan.grace_s
        await self._end(master, RoleKind.WORKER, wait_s=grace_s)
        await self._end(master, RoleKind.SERVER, wait_s=0.0)

    async def _end(self, master: connection.Connection, kind: RoleKind, *, wait_s: float) -> None:
        for kill in (False, True):
            await self._until_gone(kind, wait_s)
            for role in self._of_kind(kind):
                log.info("%s %s", "killing" if kill else "ending", role)
                self._platform.stop(role, kill=kill)
            wait_s = POLITE_S
        await self._until_gone(kind, wait_s)
        await self._tell_exits(master)

    async def _until_gone(self, kind: RoleKind, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while self._of_kind(kind) and time.monotonic() < deadline and not self._killed.is_set():
            await asyncio.sleep(0.01)

    def _of_kind(self, kind: RoleKind) -> list[Role]:
        return [role for role in self._platform.running() if role.kind is kind]

    async def _without_master(self, error: errors.MasterUnreachable) -> messages.JobStatus:
        """The master has gone: nothing can be asked any more, only said."""
        await self._until_gone(RoleKind.MASTER, POLITE_S)
        why = f"{self._master_exit}: the shards it handed out are lost" if self._master_exit else str(error)
        return msgspec.structs.replace(self._last, phase=Phase.FAILED, why=why, blame=Blame.INFRASTRUCTURE)

    def _files_secret(self) -> bytes:
        return bytes.fromhex(self._files.secret.read_text())

    def _log_of(self, role: Role) -> str:
        return str(self._files.log_of(role))


def write_secret(files: logs.RunFiles) -> None:
    """Draw the job's secret and write it where only this user can read it."""
    try:
        handle = os.open(files.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as file:
            file.write(secrets.token_hex(32))
    except OSError as error:
        raise events.as_disk_error(error, files.secret) from error
