"""What a platform must offer: start a role, limit it, stop it, say when it has ended and what it takes.

In: `platforms.agent` decides what runs. Next: `platforms.local`. Others (Ray, Kubernetes) fill the same seam.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from springtide.domain.cluster import Life, RoleExit
from springtide.domain.resources import Limits, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start: `python -m module arguments`."""

    life: Life
    module: str
    arguments: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of `config.Settings` that it must see."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Other variables, unless the user has set them."""
    limits: Limits = field(default_factory=Limits)


class Platform(Protocol):
    """A place to run roles. All roles of a job end with the agent that started them, however it ends."""

    def start(self, launch: Launch, on_exit: Callable[[RoleExit], None]) -> int:
        """Start a role; its process id. `on_exit` is called once, in the agent's event loop."""
        ...

    def stop(self, life: Life, *, kill: bool) -> None:
        """Ask a process to end, or end it; harmless when it has ended."""
        ...

    def hold(self, life: Life, limits: Limits) -> bool:
        """Other limits for a process that runs; whether they hold now. Where they cannot, its next life has them."""
        ...

    def running(self) -> list[Life]:
        """What has been started and has not ended."""
        ...

    def usage(self) -> Mapping[Life, tuple[Usage, Limits]]:
        """What each running process takes, and what it may take."""
        ...

    def close(self) -> None:
        """End whatever still runs, children of roles included."""
        ...
