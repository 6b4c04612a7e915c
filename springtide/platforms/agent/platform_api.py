"""Interface of a platform: it starts, limits and stops roles, and reports their exits and their usage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLaunch:
    """A process to start: `python -m module arguments`."""

    life: Life
    module: str
    arguments: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Default values of other variables. A variable that the user has set takes precedence."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Variables from the job's spec, which override existing variables."""
    limits: ProcessLimits = field(default_factory=ProcessLimits)


class Platform(Protocol):
    """A place to run roles. Roles on the agent's host end with the agent. Roles on other hosts survive the end of the
    agent."""

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        """Start a role and return its process id. The platform calls `on_exit` once for each process, in the agent's
        event loop.
        """

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        """Take over the running roles of an earlier agent of this job, and return them.

        The platform also calls `on_exit` for known exits that happened since the earlier agent ended. A platform whose
        roles end with their agent returns nothing.
        """

    def stop(self, life: Life, *, kill: bool) -> None:
        """Ask a process to end, or kill it. Do nothing if the process has ended."""

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        """Change the limits of a running process. Return False if the new limits apply only after its next start."""

    def running(self) -> list[Life]:
        """Return the role incarnations that have started and not ended."""

    def usage(self) -> Mapping[Life, tuple[Usage, ProcessLimits]]:
        """Return usage and limits of each running process, except processes that report their own usage."""

    def close(self) -> None:
        """End all remaining processes after the job, including children of roles."""

    def leave(self) -> None:
        """Leave a running job to the next agent, but end the roles that cannot survive this agent."""
