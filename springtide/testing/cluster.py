"""Runs a real job on this machine for a test. The test can kill, stop, wake and scale its processes.

In: a script and a `JobSpec`. Out: the job's last status. The job runs as with `springtide run`, but without a terminal:
the agent runs in a thread of the test. The end of the `with` block removes all processes.

    with LocalCluster("train.py", spec=JobSpec(name="counts", workers=3), folder=tmp_path) as job:
        job.until(lambda status: status.samples > 1000)
        job.kill("worker-1")
        job.kill("master")
        assert job.wait().phase == "finished"
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from springtide import errors
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import parse_role
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.platforms.agent.agent import Agent
from springtide.platforms.agent.master_client import ask_master
from springtide.platforms.agent.platform_api import Platform
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local.fork_server import ForkServerClient
from springtide.platforms.local.platform import LocalPlatform
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus
from springtide.rpc.transport import addresses
from springtide.telemetry import events, logs

log = logging.getLogger(__name__)
LOOK_S = 0.02
CALL_S = 60.0  # seconds for which a call is repeated if the master is lost
DEATH_LOOK_S = 0.001
DEATH_S = 10.0  # most seconds to wait until a killed process is dead, because the kernel may keep it in a system call


class LocalCluster:
    """One job. Roles have the names of their logs: `worker-0`, `server-1`, `master`."""

    warm: ClassVar[ForkServerClient | None] = None
    """Fork server for the workers and servers of all jobs in a test session; None if there is none."""

    def __init__(
        self,
        script: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        *,
        spec: JobSpec,
        folder: pathlib.Path,
        grace_s: float = 30.0,
        warm: ForkServerClient | None = None,
        **more: Any,
    ) -> None:
        """`warm` is a fork server for this job, closed by its creator; `more` has further fields of the `RunPlan`."""
        self._warm = warm or self.warm
        self.files = logs.make_run(folder, spec.name)
        self._plan = RunPlan(
            spec=spec,
            script=os.fspath(script),
            arguments=tuple(str(argument) for argument in arguments),
            grace_s=grace_s,
            **more,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"springtide-{spec.name}")
        self._agent: Agent | None = None
        self._platform: Platform | None = None
        self._told: tuple[int, list[dict[str, object]]] = (0, [])
        self._seen = JobStatus(name=spec.name, phase=JobPhase.STARTING, why="", elapsed_s=0.0)
        self._ended: JobStatus | BaseException | None = None

    def __enter__(self) -> "LocalCluster":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        while self._thread.is_alive():
            if self._agent is not None:
                with contextlib.suppress(RuntimeError):  # the loop may have ended a moment ago
                    self._loop.call_soon_threadsafe(self._agent.kill)
            self._thread.join(LOOK_S)

    @property
    def status(self) -> JobStatus:
        """Return the newest status of the job."""
        return self._seen

    @property
    def over(self) -> bool:
        """Return True if the job has ended."""
        return self._ended is not None

    @property
    def story(self) -> list[dict[str, object]]:
        """Return all events so far. The file only grows, and tests that wait for an event look at it often."""
        size = self.files.events.stat().st_size if self.files.events.exists() else 0
        if size != self._told[0]:
            self._told = (size, events.read(self.files.events))
        return self._told[1]

    def pids(self) -> dict[str, int]:
        """Return the process id of each running role."""
        found: dict[str, int] = {}
        for event in self.story:
            if event["event"] == "joined":
                found[str(event["role"])] = int(str(event["pid"]))
        where = addresses.read_master(self.files.master)
        if where is not None:
            found["master"] = where.pid
        return {role: pid for role, pid in found.items() if is_ours(pid)}

    def signal(self, role: str, number: signal.Signals) -> int | None:
        """Send a signal to a role. Return the process id of the role; return None if the role is not running."""
        pid = self.pids().get(role)
        if pid is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def kill(self, role: str) -> bool:
        """Send SIGKILL and wait until the process is dead, because a dying process would still count as alive."""
        pid = self.signal(role, signal.SIGKILL)
        if pid is None:
            return False
        deadline = time.monotonic() + DEATH_S
        while is_ours(pid) and time.monotonic() < deadline:
            time.sleep(DEATH_LOOK_S)
        return True

    def kill_each(self, *roles: str) -> None:
        """Kill these roles one after the other. If a role is still joining or restarting, wait for it first."""
        for role in roles:
            self.until(lambda _, role=role: self.kill(role))  # type: ignore[misc]

    def wake(self, pid: int) -> None:
        """Continue a process that was stopped with SIGSTOP."""
        if is_ours(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def throttle(self, role: str, cpu: float) -> bool:
        """Limit a role to this many cores; the job must have started with a limit. False if a clean end is
        impossible.
        """
        wanted = parse_role(role)

        async def hold() -> bool:
            platform = self._platform
            lives = platform.running() if platform is not None else []
            return platform is not None and any(
                platform.hold(life, ProcessLimits(cpu=cpu)) for life in lives if life.role == wanted
            )

        return asyncio.run_coroutine_threadsafe(hold(), self._loop).result()

    def scale(self, workers: int | None = None, *, servers: int | None = None, data_workers: int | None = None) -> None:
        """Scale the job as `springtide scale` does, and return when the master has accepted the request."""
        request = messages.ScaleRequest(workers, servers, "asked by a test", data_workers)
        work = ask_master(self.files, request, within_s=CALL_S)
        try:
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the agent's loop is closed
            work.close()
            raise errors.JobFailed("the job is over") from None
        while not asked.done():
            if self.over:
                asked.cancel()
                work.close()
                raise errors.JobFailed("the job is over")
            concurrent.futures.wait([asked], LOOK_S)
        asked.result()

    def stop(self, why: str = "stopped by a test") -> None:
        """Drain the job as `springtide stop` does."""
        assert self._agent is not None
        self._loop.call_soon_threadsafe(self._agent.stop, why)

    def until(self, true: Callable[[JobStatus], object], *, within_s: float = 120.0) -> JobStatus:
        """Wait until the condition is true. Raise AssertionError if the job ends or the time runs out first."""
        deadline = time.monotonic() + within_s
        while not true(self._seen):
            assert not self.over, f"the job has ended before that: {self._ended}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {self._seen}"
            time.sleep(LOOK_S)
        return self._seen

    def moves(self) -> list[dict[str, object]]:
        return [event for event in self.story if event["event"] == "moved"]

    def settled(self, status: JobStatus, servers: int, *, known: int) -> bool:
        """Return True if exactly this many servers hold all slots. `known` is the number of moves before the
        request."""
        moves = self.moves()
        return (
            len(moves) > known
            and not moves[-1]["left"]  # also wait until the moves are complete, because the status may be one poll old
            and not status.roles.slots_moving
            and status.roles.servers.alive == status.roles.servers.wanted == servers
        )

    def wait(self, *, within_s: float = 600.0) -> JobStatus:
        """Wait until the job is over and all its processes have ended; return the last status."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"not over within {within_s:g} s: {self._seen}"
        assert self._ended is not None
        if isinstance(self._ended, BaseException):
            raise self._ended
        if self._ended.phase is JobPhase.FAILED:
            self._log_ends()
        return self._ended

    def _log_ends(self) -> None:
        """Log the last events and the end of each role's log, because the test's folder may be deleted before a person
        reads them.
        """
        for event in self.story[-12:]:
            log.warning("%s", event)
        for path in sorted(self.files.logs.glob("*.log")):
            for line in logs.tail(path, lines=4):
                log.warning("%s: %s", path.stem, line)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._ended = self._loop.run_until_complete(self._work())
        except BaseException as error:
            self._ended = error
        finally:
            self._loop.close()

    async def _work(self) -> JobStatus:
        self._platform = LocalPlatform(self.files, warm=self._warm)
        self._agent = Agent(self._plan, self.files, self._platform)
        return await self._agent.run(self._on_status)

    def _on_status(self, status: JobStatus) -> None:
        self._seen = status


def is_ours(pid: int) -> bool:
    """Return True if the process is alive and is a role of a job; process ids are reused."""
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return b"springtide." in command and state != "Z"
