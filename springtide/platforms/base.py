"""What a platform must offer: start a role, stop it, say when it has ended.

In: `platforms.agent` decides what runs. Next: `platforms.local`. Others (Ray, Kubernetes) fill the same seam.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from springtide.domain.cluster import Role, RoleExit


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start: `python -m module arguments`."""

    role: Role
    module: str
    arguments: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of `config.Settings` that it must see."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Other variables, unless the user has set them."""


class Platform(Protocol):
    """A place to run roles. All roles of a job end with the agent that started them, however it ends."""

    def start(self, launch: Launch, on_exit: Callable[[RoleExit], None]) -> int:
        """Start a role; its process id. `on_exit` is called once, in the agent's event loop."""
        ...

    def stop(self, role: Role, *, kill: bool) -> None:
        """Ask a role to end, or end it; harmless when it has ended."""
        ...

    def running(self) -> list[Role]:
        """Roles that have been started and have not ended."""
        ...

    def close(self) -> None:
        """End whatever still runs, children of roles included."""
        ...
