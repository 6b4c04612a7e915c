"""Interface of a submitted job on any platform, which commands such as `status`, `logs` and `scale` use.

Each implementation (`platforms.local`, `ray_cluster`, `k8s.client`) has `open_job(name, where) -> JobHandle`, which
raises `errors.MissingFile` for an unknown job, and `names(where) -> list[str]`, newest first.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from springtide import errors
from springtide.domain.spec.job_spec import JobPhase
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.telemetry.logs import RunCard


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
