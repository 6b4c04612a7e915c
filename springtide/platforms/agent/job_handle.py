"""Interface of a submitted job on any platform, which commands such as `status`, `logs` and `scale` use.

Each implementation (`platforms.local`, `ray_cluster`, `k8s.client`) has `open_job(name, where) -> JobHandle`, which
raises `errors.MissingFile` for an unknown job, and `names(where) -> list[str]`, newest first.
"""

import asyncio
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.rpc.transport import addresses, connection
from springtide.telemetry.logs import RunCard, RunFiles

ANSWER_S = 15.0  # seconds to wait for a reply; replacing a master takes less time
AGAIN_S = 0.1


class LogLine(NamedTuple):
    """A line of a role's log."""

    role: str
    text: str


class JobHandle(Protocol):
    """One job. Every call may be repeated. Only `logs` with `follow` waits for a long time."""

    @property
    def name(self) -> str:
        """Name that users give the job."""

    @property
    def platform(self) -> str:
        """Platform of the job: local, ray or k8s."""

    @property
    def card(self) -> RunCard:
        """Description of the job: its script, and when it started."""

    @property
    def places(self) -> dict[str, str]:
        """Paths or commands by which a person finds the job's `logs`, `events` and so on."""

    def running(self) -> bool:
        """Return True if the job is not over. Such a job has an agent, or will get a new agent."""

    def status(self) -> JobStatus:
        """Return the current or last status. Raise `MasterUnreachable` if the master of a running job does not
        reply."""

    def ask(self, request: Request) -> Reply:
        """Send a request such as `Scale` or `Stop` to the master. Raise `BadInput` if the job does not run."""

    def story(self) -> list[dict[str, Any]]:
        """Return all events so far, in order; each event has the fields `at` and `event`."""

    def roles(self) -> Sequence[str]:
        """Return the roles that have logs."""

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        """Yield the last lines of these roles, one role after another.

        With `follow`, continue with new lines until the job is over. If `roles` is empty, the lines of roles that
        join later are included.
        """


def not_running(name: str, phase: JobPhase) -> errors.BadInput:
    return errors.BadInput(f"job {name} does not run: {phase}; see `springtide status {name}`")


async def ask_master(
    files: RunFiles,
    request: Request,
    *,
    secret: pathlib.Path | None = None,
    running: Callable[[], bool] = lambda: True,
    within_s: float = ANSWER_S,
) -> Reply:
    """Send a request to the master. Retry until the master answers, `within_s` seconds have passed, or the job ends."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            key = bytes.fromhex((secret or files.secret).read_text().strip())
            where = addresses.read_master(files.master)
            if where is not None and where.address:
                return await ask_at(
                    where.local or where.address,
                    key,
                    request,
                    within_s=within_s,
                    certificates=files.certificates(RoleKind.AGENT),
                )
        except (errors.MasterUnreachable, OSError):
            if not running() or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise errors.MasterUnreachable(f"job {files.root.name} has no master yet; see {files.logs / 'master.log'}")
        await asyncio.sleep(AGAIN_S)


async def ask_at(address: str, secret: bytes, request: Request, *, within_s: float, certificates: str = "") -> Reply:
    master = await connection.connect(address, secret, within_s=0.5, certificates=certificates)
    try:
        async with asyncio.timeout(within_s):
            return await master.ask(request)
    except TimeoutError:
        raise errors.MasterUnreachable(f"the master at {address} does not answer") from None
    finally:
        await master.close()
