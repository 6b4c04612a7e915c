"""What a platform must offer: start a role, limit it, stop it, say when it has ended and what it takes.

In: `platforms.agent.agent` decides what runs. Next: `platforms.local.platform`. Others (Ray, Kubernetes) fill the same
seam, with the master as a process of the agent's own host: `platforms.agent.platform_api`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit, RoleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLaunch:
    """A process to start: `python -m module arguments`."""

    life: Life
    module: str
    arguments: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of `config.Settings` that it must see."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Other variables, unless the user has set them."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Variables that the job's own spec gives, over those that are there."""
    limits: ProcessLimits = field(default_factory=ProcessLimits)


class Platform(Protocol):
    """A place to run roles. On this host they end with their agent, however it ends; on others they outlive it."""

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        """Start a role; its process id. `on_exit` is called once, in the agent's event loop."""
        ...

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        """Take over what an earlier agent of this job has left: those that run, from now on as if started here.

        Ends that happened meanwhile and are still known are told by `on_exit` too. Where roles end with their agent
        there is nothing.
        """
        ...

    def stop(self, life: Life, *, kill: bool) -> None:
        """Ask a process to end, or end it; harmless when it has ended."""
        ...

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        """Other limits for a process that runs; whether they hold now. Where they cannot, its next life has them."""
        ...

    def running(self) -> list[Life]:
        """What has been started and has not ended."""
        ...

    def usage(self) -> Mapping[Life, tuple[Usage, ProcessLimits]]:
        """What each running process takes, and what it may take; nothing of those that tell it themselves."""
        ...

    def close(self) -> None:
        """The job is over: end whatever still runs, children of roles included."""
        ...

    def leave(self) -> None:
        """The agent goes, the job is not over: what can outlive it is left to the next agent, all else ends."""
        ...


class CompositePlatform:
    """`near` runs masters, `far` all others."""

    def __init__(self, near: Platform, far: Platform) -> None:
        self._near, self._far = near, far

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        return self._of(launch.life).start(launch, on_exit)

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        return self._far.adopt(on_exit)

    def stop(self, life: Life, *, kill: bool) -> None:
        self._of(life).stop(life, kill=kill)

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        return self._of(life).hold(life, limits)

    def running(self) -> list[Life]:
        return [*self._near.running(), *self._far.running()]

    def usage(self) -> Mapping[Life, tuple[Usage, ProcessLimits]]:
        return {**self._near.usage(), **self._far.usage()}

    def close(self) -> None:
        self._far.close()
        self._near.close()

    def leave(self) -> None:
        self._near.leave()
        self._far.leave()

    def _of(self, life: Life) -> Platform:
        return self._near if life.role.kind is RoleKind.MASTER else self._far
