"""Interface to a submitted job on any platform, behind commands such as `status`, `logs` and `scale`.

In: a job's name and location. Out: its status, events and logs, and replies of its master. Implementations:
`platforms.local.job_handle`, `platforms.ray_cluster.job.job_handle` and `platforms.k8s.client.job_handle`. Each has
`open_job(name, where) -> JobHandle`, which raises `errors.MissingFile` for an unknown job, and `names(where) ->
list[str]`, newest first. Next: `launch.job_lookup` picks a module, `cli` shows the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from springtide.rpc.messages import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """Static facts of a job, known in every state."""

    script: str
    arguments: tuple[str, ...] = ()
    began_at: float
    """Start of the job as seconds since 1970; event times count from here."""


class LogLine(NamedTuple):
    """A line of a role's log."""

    role: str
    """Name of the role in logs, such as worker-1 or master."""
    text: str
    """Text without its line end."""


class JobHandle(Protocol):
    """One job. Only followed `logs` wait for long. All calls may be repeated."""

    @property
    def name(self) -> str:
        """Name that users give the job."""
        ...

    @property
    def platform(self) -> str:
        """Platform of the job: local, ray or k8s."""
        ...

    @property
    def card(self) -> JobSummary:
        """Facts of the job: what it runs, and since when."""
        ...

    @property
    def places(self) -> dict[str, str]:
        """Paths or commands for people, by content: `logs`, `events`, ..."""
        ...

    def running(self) -> bool:
        """Return True if the job is not over: an agent keeps it, or will do so again."""
        ...

    def status(self) -> messages.JobStatus:
        """Return the current or last status; `MasterUnreachable` if the master of a running job does not
        reply in time.
        """
        ...

    def ask(self, request: messages.Request) -> messages.Reply:
        """Send a request such as `Scale` or `Stop` to the master; `BadInput` if the job does not run."""
        ...

    def story(self) -> list[dict[str, Any]]:
        """Return the events so far in order, each with `at` and `event`."""
        ...

    def roles(self) -> Sequence[str]:
        """Return the roles that have logs."""
        ...

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        """Yield the last lines of these roles, one role after another.

        With `follow`, continue with new lines until the job is over. If `roles` is empty, this includes roles that join
        later.
        """
        ...
