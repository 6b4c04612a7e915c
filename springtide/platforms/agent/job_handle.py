"""How a job that was submitted is reached from outside, wherever it runs: the seam behind `status`, `logs`, `scale`...

In: a job's name and where it is. Out: its status, its story, its logs, and answers of its master. On this machine
`platforms.local.job_handle`; on clusters `platforms.ray_cluster.job.job_handle` and `platforms.k8s.client.job_handle`.
Each of these modules has `open_job(name, where) -> Reach`, which raises `errors.MissingFile` when there is no such job,
and `names(where) -> list[str]`, the newest first. Next: `launch.job_lookup` picks one, `cli` shows it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from springtide.rpc.messages import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """What is known of a job however it is doing."""

    script: str
    arguments: tuple[str, ...] = ()
    began_at: float
    """Time of day, in seconds: seconds of its story count from here."""


class LogLine(NamedTuple):
    """A line that a role has printed."""

    role: str
    """As roles print: worker-1, master."""
    text: str
    """Without its line end."""


class JobHandle(Protocol):
    """One job. Nothing here waits for long, but for `logs` that are followed; all of it may be called again."""

    @property
    def name(self) -> str:
        """How a user calls it."""
        ...

    @property
    def platform(self) -> str:
        """local, ray or k8s."""
        ...

    @property
    def card(self) -> JobSummary:
        """What it runs, and since when."""
        ...

    @property
    def places(self) -> dict[str, str]:
        """Where more of it is to be found, by what it is: `logs`, `events`, ...: paths or commands, for people."""
        ...

    def running(self) -> bool:
        """Whether it is not over: someone keeps it, or will again."""
        ...

    def status(self) -> messages.JobStatus:
        """How it is now, or how it ended. `MasterUnreachable` when it runs and its master does not answer in time."""
        ...

    def ask(self, request: messages.Request) -> messages.Reply:
        """Have its master do something: `Scale`, `Stop`, ...; `BadInput` when the job does not run."""
        ...

    def story(self) -> list[dict[str, Any]]:
        """Its events so far, in order, each with `at` and `event`."""
        ...

    def roles(self) -> Sequence[str]:
        """Whose logs there are."""
        ...

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        """The last lines of these roles, all of one before those of the next. Followed: then whatever comes, of roles
        that join meanwhile too where all were asked for (`roles` empty), until the job is over."""
        ...
