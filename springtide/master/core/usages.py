"""Pure. Resource use of each role, from the agent's measurement or else the role's own report.

In: `master.dispatcher`, on every poll of the agent and every heartbeat; the clock is an argument. Out: one `RoleUsage`
for each role, for guards, planning and the status. The agent's measurement takes precedence, because it covers a
process from its start and includes children.
"""

from dataclasses import dataclass, field, replace

from springtide.domain.core.roles import Role, RoleUsage

STALE_S = 10.0  # a role's own report is ignored after this time


@dataclass(slots=True)
class UsageTable:
    """Resource use by role, for the newest incarnation of each."""

    _agents: dict[Role, RoleUsage] = field(default_factory=dict)
    _own: dict[Role, tuple[float, RoleUsage]] = field(default_factory=dict)

    def looked(self, told: tuple[RoleUsage, ...]) -> None:
        """Replace the agent's measurements, which may be empty."""
        self._agents = {each.role: each for each in told}

    def heard(self, role: Role, incarnation: int, told: RoleUsage | None, *, at: float) -> None:
        """Record a role's report of its own use."""
        if told is not None:
            self._own[role] = (at, replace(told, role=role, incarnation=incarnation))

    def gone(self, role: Role, incarnation: int) -> None:
        """Drop the report of an incarnation that has ended."""
        if role in self._own and self._own[role][1].incarnation <= incarnation:
            del self._own[role]

    def now(self, *, at: float) -> dict[Role, RoleUsage]:
        """Return the current use of each role."""
        own = {role: told for role, (when, told) in self._own.items() if at - when <= STALE_S}
        return {**own, **self._agents}
