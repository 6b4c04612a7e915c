"""A platform of two: the master is a process beside its agent, all other roles are where the other platform puts them.

In: `platforms.agent.agent` on a cluster (Ray, Kubernetes). So the master's journal, its story and its `master.json` are
files of the agent's own host; it ends with its agent, and the next agent starts the next one, while the other roles go
on.
"""

from collections.abc import Callable, Mapping

from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit, RoleKind
from springtide.platforms.agent.platform_api import Platform, RoleLaunch


class CompositePlatform:
    """`near` runs masters, `far` all others."""

    def __init__(self, near: Platform, far: Platform) -> None:
        self._near, self._far = near, far

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        """Where it belongs."""
        return self._of(launch.life).start(launch, on_exit)

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        """What the other platform has left."""
        return self._far.adopt(on_exit)

    def stop(self, life: Life, *, kill: bool) -> None:
        """Where it is."""
        self._of(life).stop(life, kill=kill)

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        """Where it is."""
        return self._of(life).hold(life, limits)

    def running(self) -> list[Life]:
        """In both places."""
        return [*self._near.running(), *self._far.running()]

    def usage(self) -> Mapping[Life, tuple[Usage, ProcessLimits]]:
        """In both places."""
        return {**self._near.usage(), **self._far.usage()}

    def close(self) -> None:
        """Roles first, then the master."""
        self._far.close()
        self._near.close()

    def leave(self) -> None:
        """The master ends with this agent; two would be one too many."""
        self._near.leave()
        self._far.leave()

    def _of(self, life: Life) -> Platform:
        return self._near if life.role.kind is RoleKind.MASTER else self._far
