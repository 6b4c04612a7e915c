"""Pure. Roles of a job, their processes, and the placement of slots on servers."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from springtide import errors
from springtide.domain.core.resources import GpuUse


class RoleKind(StrEnum):
    """Kind of a process in a job."""

    AGENT = "agent"
    MASTER = "master"
    SERVER = "server"
    WORKER = "worker"
    DATA_WORKER = "data-worker"


RANKED = (RoleKind.SERVER, RoleKind.WORKER, RoleKind.DATA_WORKER)
"""Role kinds of which a job may have several processes."""


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """A role: the kind and the rank of one process of the job. `str(role)` is the name of its log file, such as
    `worker-1`.
    """

    kind: RoleKind
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.kind}-{self.rank}" if self.kind in RANKED else str(self.kind)


def parse_role(name: str) -> Role | None:
    kind, _, rank = name.rpartition("-")
    if kind in RANKED and rank.isdecimal():
        return Role(RoleKind(kind), int(rank))
    return Role(RoleKind(name)) if name in (RoleKind.AGENT, RoleKind.MASTER) else None


class Life(msgspec.Struct, frozen=True, order=True):
    """One incarnation of a role. Two incarnations can exist briefly: a hung process that is being killed, and its
    successor."""

    role: Role
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.role}.{self.incarnation}" if self.incarnation else str(self.role)


LEAST_SLOTS = 64  # as in cpp/store; simulations use fewer


def check_slots(slots: int, of: str) -> None:
    if slots < LEAST_SLOTS or slots & (slots - 1):
        raise errors.BadInput(f"{of}: {slots} slots; use a power of two, {LEAST_SLOTS} or more")


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The placement: a map from each slot to the server that owns the slot. Every change of the map increases the
    epoch.
    """

    epoch: int
    servers: int
    server_of_slot: tuple[int, ...]

    def __post_init__(self) -> None:
        check_slots(len(self.server_of_slot), "placement")
        if not all(0 <= server < self.servers for server in self.server_of_slot):
            raise errors.BadInput(f"placement: a slot names a server outside 0..{self.servers - 1}")

    def slots_of(self, server: int) -> tuple[int, ...]:
        return tuple(slot for slot, owner in enumerate(self.server_of_slot) if owner == server)


class SlotMove(msgspec.Struct, frozen=True, kw_only=True):
    """Move of one slot from a source server to a target server."""

    slot: int
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleExit:
    """Exit of one process of the job, as reported by its platform."""

    role: Role
    pid: int
    code: int | None = None
    """Exit status; None if a signal ended the process, or if nobody observed its end."""
    signal: str = ""
    """Name of the signal that ended the process, such as SIGKILL."""
    incarnation: int = 0
    oom: bool = False
    """True if the kernel killed the process at its memory limit."""
    evicted: bool = False
    """True if the cluster removed the process (eviction, preemption) through no fault of the process."""
    unplaced: str = ""
    """Reason why the process never ran: within the platform's timeout, no host had room, or no host could start it."""
    error: str = ""
    """Last error in the log of the process, on one line. A worker reports the error of its script separately."""

    @property
    def clean(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.unplaced:
            return f"{self.role} has no node: {self.unplaced}"
        cause = f"was killed by {self.signal}" if self.signal else f"exited with status {self.code}"
        cause = "has ended unseen" if not self.signal and self.code is None else cause
        why = " for lack of memory" if self.oom else " by eviction" if self.evicted else ""
        return f"{self.role} (pid {self.pid}) {cause}{why}{f': {self.error}' if self.error else ''}"


class WantedRole(msgspec.Struct, frozen=True, kw_only=True):
    """Process that the agent must run. The agent starts each incarnation once and ends older or unwanted incarnations.

    The agent reports an incarnation that has ended and never restarts it. Then the master requests the next
    incarnation, or requests no process.
    """

    role: Role
    incarnation: int = 0
    cpu: float | None = None
    memory: int | None = None
    after_s: float = 0.0
    """Seconds to wait before the start, counted from the first poll that names this incarnation."""
    joined: bool = False
    """True if this incarnation has joined the job, so that its process was certainly started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleUsage:
    """Resource usage of one process. Either the process or its agent measures it."""

    role: Role
    incarnation: int = 0
    cpu_s: float = 0.0
    memory: int = 0
    cpu_limit: float | None = None
    memory_limit: int | None = None
    throttled_s: float = 0.0
    """Sum of the durations of all quota periods in which the process used up its CPU quota, in seconds."""
    gpu: GpuUse | None = None
    """Use of the process's GPU, which only the process itself can measure."""
