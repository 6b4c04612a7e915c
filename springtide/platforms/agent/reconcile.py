"""Pure. Computes the steps that turn the running roles into the wanted roles. The time is an argument.

Each incarnation ("life") of a role starts at most once, even if the master changes. A new agent counts every running
life as started. A life that joined the job but does not run is lost.
"""

from collections.abc import Iterable, Sequence

import msgspec

from springtide.domain.core.roles import Life, Role, RoleKind, WantedRole

POLITE_S = 5.0  # seconds between the request to end and the kill


class StartRole(msgspec.Struct, frozen=True):
    """Start this life of a role."""

    wanted: WantedRole


class StopRole(msgspec.Struct, frozen=True):
    """Ask a process to end, or kill the process."""

    life: Life
    kill: bool
    why: str


class ResizeRole(msgspec.Struct, frozen=True):
    """Change the limits of a running process."""

    wanted: WantedRole


class LostRole(msgspec.Struct, frozen=True):
    """A life that has joined but does not run, because it ended while no agent was watching."""

    life: Life


Step = StartRole | StopRole | ResizeRole | LostRole


class Reconciler(msgspec.Struct):
    """State between two polls: when each life was requested, which lives have started, and pending requests to end."""

    wanted_since: dict[Life, float] = msgspec.field(default_factory=dict)
    newest: dict[Role, int] = msgspec.field(default_factory=dict)
    """Highest incarnation of each role that this agent or an earlier agent has started."""
    asked_at: dict[Life, float] = msgspec.field(default_factory=dict)
    limits: dict[Life, tuple[float | None, int | None]] = msgspec.field(default_factory=dict)

    def steps(self, wanted: Sequence[WantedRole], running: Iterable[Life], *, at: float) -> list[Step]:
        lives = {Life(role.role, role.incarnation): role for role in wanted}
        present = list(running)
        for life in present:
            self.newest[life.role] = max(life.incarnation, self.newest.get(life.role, -1))
        return [*self._ends(lives, present, at), *self._starts(lives, present, at), *self._holds(lives, present)]

    def _holds(self, lives: dict[Life, WantedRole], running: list[Life]) -> Iterable[Step]:
        """Resize the roles whose wanted limits have changed. The limits in force are not compared, because a machine
        may grant less than the wanted limits.
        """
        self.limits = {life: wanted for life, wanted in self.limits.items() if life in lives}
        for life, wanted_role in lives.items():
            wanted = (wanted_role.cpu, wanted_role.memory)
            if life in running and self.limits.setdefault(life, wanted) != wanted:
                self.limits[life] = wanted
                yield ResizeRole(wanted_role)

    def _starts(self, lives: dict[Life, WantedRole], running: list[Life], at: float) -> Iterable[Step]:
        servers = [life for life in running if life.role.kind is RoleKind.SERVER]
        for life, wanted_role in lives.items():
            if any(superseded(other, life) for other in servers):
                continue
            since = self.wanted_since.setdefault(life, at)
            started = self.newest.get(life.role, -1)
            if (
                life.incarnation > started and wanted_role.joined
            ):  # never start a second process for a life that has already joined
                self.newest[life.role] = life.incarnation
                yield LostRole(life)
            elif life.incarnation > started and at >= since + wanted_role.after_s:
                self.newest[life.role] = life.incarnation
                self.limits[life] = (wanted_role.cpu, wanted_role.memory)
                yield StartRole(wanted_role)

    def _ends(self, lives: dict[Life, WantedRole], running: list[Life], at: float) -> Iterable[Step]:
        self.asked_at = {life: when for life, when in self.asked_at.items() if life in running}
        wanted_roles = {life.role: life.incarnation for life in lives}
        for life in running:
            if life in lives:
                continue
            now = wanted_roles.get(life.role)
            why = "it is no longer wanted" if now is None else f"incarnation {now} replaces it"
            if now is not None and superseded(life, Life(life.role, now)):
                yield StopRole(life, kill=True, why=why)
            elif life not in self.asked_at:
                self.asked_at[life] = at
                yield StopRole(life, kill=False, why=why)
            elif at >= self.asked_at[life] + POLITE_S:
                yield StopRole(life, kill=True, why=why)


def superseded(life: Life, by: Life) -> bool:
    """Return True if this server must end before its next life starts, because both lives would share memory with local
    workers.
    """
    return life.role.kind is RoleKind.SERVER and life.role == by.role and life.incarnation < by.incarnation
