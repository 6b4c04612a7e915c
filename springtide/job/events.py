"""Pure. What can happen to a job. In: `master.desk` makes them of messages and of the clock. Next: `job.state`."""

from dataclasses import dataclass

from springtide.domain.cluster import Role, RoleExit
from springtide.domain.job import Blame


@dataclass(frozen=True, slots=True)
class Joined:
    """A process has called in."""

    role: Role


@dataclass(frozen=True, slots=True)
class Ready:
    """A server listens at `address`."""

    role: Role
    address: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A role has sent a heartbeat."""

    role: Role


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker's script has ended well."""

    role: Role


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's script has raised."""

    role: Role
    error: str
    trace: str = ""
    blame: Blame = Blame.USER


@dataclass(frozen=True, slots=True)
class Gone:
    """A process has ended, says the agent that started it."""

    exit: RoleExit


@dataclass(frozen=True, slots=True)
class HungUp:
    """A role's connection has closed. Its process may be dying: the agent will say."""

    role: Role


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the job to stop."""

    why: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The master itself cannot go on, for example because the disk is full."""

    error: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: deadlines are looked at."""


Event = Joined | Ready | Heard | Finished | Failed | Gone | HungUp | StopAsked | Broken | Tick
