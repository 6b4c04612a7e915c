"""Pure. Resource use of each role, from the agent's measurement or else the role's own report.

In: `master.dispatcher`, on every poll of the agent and every heartbeat; the clock is an argument. Out: one `RoleUsage`
for each role, for guards, planning and the status. The agent's measurement takes precedence, because it covers a
process from its start and includes children.
"""

from dataclasses import dataclass, field, replace

from springtide.domain.core.roles import Role, RoleUsage

STALE_S = 10.0  # a role that has not said anything for so long takes nobody knows what


@dataclass(slots=True)
class UsageTable:
    """Resource use by role, for the newest incarnation of each."""

    _agents: dict[Role, RoleUsage] = field(default_factory=dict)
    _own: dict[Role, tuple[float, RoleUsage]] = field(default_factory=dict)

    def looked(self, told: tuple[RoleUsage, ...]) -> None:
        """All that the agent sees, which may be nothing."""
        self._agents = {each.role: each for each in told}

    def heard(self, role: Role, incarnation: int, told: RoleUsage | None, *, at: float) -> None:
        """A role speaks for itself, and for nobody else."""
        if told is not None:
            self._own[role] = (at, replace(told, role=role, incarnation=incarnation))

    def gone(self, role: Role, incarnation: int) -> None:
        """This life has ended."""
        if role in self._own and self._own[role][1].incarnation <= incarnation:
            del self._own[role]

    def now(self, *, at: float) -> dict[Role, RoleUsage]:
        """Who takes what."""
        own = {role: told for role, (when, told) in self._own.items() if at - when <= STALE_S}
        return {**own, **self._agents}
