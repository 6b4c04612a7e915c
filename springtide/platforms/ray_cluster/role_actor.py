"""Ray actor that holds one process of a job. The actor starts the process, forwards its log, reports its exit, and ends
with it.

The steward calls this actor. A private `LocalPlatform` enforces limits if permissions allow, and its watchdog kills
the process and its children when the actor's process ends. An actor that nobody calls for `LONELY_S` seconds ends
itself.
"""

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from springtide import errors, private_files
from springtide.domain.core.roles import RoleExit
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.local.platform import LocalPlatform
from springtide.telemetry import logs

# seconds without a call after which an actor ends itself; a steward calls every second, but Ray may need minutes to
# give up the steward's node
LONELY_S = 600.0
NEWS_S = 2.0  # longest time in seconds until the actor replies, even without output, to show that it is alive
LOOK_S = 0.1  # seconds between two checks of the log
CHUNK = 1 << 18
PREFIX = "springtide-holder-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running process."""

    pid: int
    node: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleOutput:
    """Output of a process since the last call. After all output, also the exit of the process."""

    said: bytes = b""
    exit: RoleExit | None = None


class RoleActor:
    """One life of a role. The job's steward calls all methods."""

    def __init__(self) -> None:
        self._asked_at = time.monotonic()
        self._platform: LocalPlatform | None = None
        self._started: Started | None = None
        self._launch: RoleLaunch | None = None
        self._exit: RoleExit | None = None
        self._gone = asyncio.Event()
        self._told = 0
        self._folder = pathlib.Path()
        self._watch: asyncio.Task[None] | None = None

    async def start(self, launch: RoleLaunch, files: Mapping[str, bytes]) -> Started:
        self._asked_at = time.monotonic()
        if self._started is not None:
            return self._started
        sweep(pathlib.Path(tempfile.gettempdir()))
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        for inner in ("logs", "tls"):
            (self._folder / inner).mkdir()
        for name, content in files.items():
            write(self._folder / name, content)
        self._launch = told_where(launch, self._folder, node_address(), variables_of_job())
        self._platform = LocalPlatform(self._files, self._print)
        pid = self._platform.start(self._launch, self._ended)
        self._started = Started(pid=pid, node=node_id(), host=node_address())
        self._watch = asyncio.create_task(self._leave_when_lonely())
        return self._started

    async def who(self) -> tuple[RoleLaunch, Started] | None:
        self._asked_at = time.monotonic()
        return None if self._launch is None or self._started is None else (self._launch, self._started)

    async def news(self) -> RoleOutput:
        """Wait up to two seconds for output of the process, or for its exit."""
        self._asked_at = time.monotonic()
        deadline = self._asked_at + NEWS_S
        while True:
            # read this flag before the last check of the log, because the check then sees all output of an ended
            # process
            gone = self._gone.is_set()
            if unsent := self._unsent():
                self._told += len(unsent)
                sys.stdout.write(unsent.decode(errors="replace"))
                sys.stdout.flush()
                return RoleOutput(said=unsent)
            if gone or time.monotonic() >= deadline:
                return RoleOutput(exit=self._exit)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), LOOK_S)

    async def put(self, name: str, content: bytes) -> None:
        write(self._folder / name, content)

    async def end(self, kill: bool) -> None:
        if self._platform is not None and self._launch is not None:
            self._platform.stop(self._launch.life, kill=kill)

    async def leave(self) -> None:
        self._close()

    @property
    def _files(self) -> logs.RunFiles:
        return logs.RunFiles(self._folder)

    def _unsent(self) -> bytes:
        if self._launch is None:
            return b""
        with open(self._files.log_of(self._launch.life.role), "rb") as file:
            file.seek(self._told)
            return file.read(CHUNK)

    def _ended(self, ended: RoleExit) -> None:
        self._exit = ended
        self._gone.set()

    def _print(self, line: str) -> None:
        print(line, flush=True)

    async def _leave_when_lonely(self) -> None:
        while time.monotonic() < self._asked_at + LONELY_S:
            await asyncio.sleep(1.0)
        self._print(f"this role ends, because the job's steward has not called for {LONELY_S:g} s")
        self._close()
        os.kill(os.getpid(), signal.SIGKILL)  # a detached actor without callers has no other way to end itself

    def _close(self) -> None:
        if self._platform is not None:
            self._platform.close()
            self._platform = None
        shutil.rmtree(self._folder, ignore_errors=True)


def told_where(launch: RoleLaunch, folder: pathlib.Path, host: str, own: Set[str] = frozenset()) -> RoleLaunch:
    """Adapt a launch to this node. Springtide's OMP_NUM_THREADS overrides Ray's, unless the job's `own` variables set
    it."""
    here = {"master_file": str(folder / "master.json"), "secret_file": str(folder / "secret"), "host": host}
    if launch.settings.get("tls"):
        here["tls"] = str(folder / "tls")
    ours = {name: value for name, value in launch.environment.items() if name not in own}
    return replace(launch, settings={**launch.settings, **here}, given={**ours, **launch.given})


def write(path: pathlib.Path, content: bytes) -> None:
    try:
        private_files.replace(path, content)
    except OSError as error:
        raise errors.JobFailed(f"cannot write {path} on this node: {error.strerror or error}") from error


def sweep(base: pathlib.Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        pid = folder.name[len(PREFIX) :].partition("-")[0]
        if pid.isdigit() and not pathlib.Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def variables_of_job() -> set[str]:
    import ray

    return set(ray.get_runtime_context().runtime_env.get("env_vars") or {})


def node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
