"""Pure. Settings of the guards, which add, relieve or replace servers, and of the straggler detection.

In: the command line, through `domain.spec.job_spec.JobSpec`. Next: `planning.guards.oom` and
`planning.guards.hot_servers`, called by `master.servers.guards`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from springtide import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """Thresholds at which the job adds, relieves or replaces servers on its own."""

    memory: bool = True
    """Add servers before their memory limit is reached."""
    servers: bool = True
    """Move load away from a hot server, and replace a slow server."""
    slower: float = 3.0
    """Factor over its peers' time per key at which a server counts as slow."""
    far_slower: float = 10.0
    """Factor over its peers' time per key, in each of the last two reports, at which a server is drained at once. Its
    slots go to its peers, and later to its replacement."""
    throttled: float = 0.6
    """Share of quota periods that were throttled at which a server can count as held back by its machine."""
    given: float = 0.5
    """Share of its due CPU below which such a throttled server is certainly held back, because the kernel counted
    it."""
    hotter: float = 1.3
    """Factor over its peers' keys per second at which a server has more load."""
    at_work: float = 0.15
    """Share of time with work in its tables below which a server cannot slow the job down."""
    busy: float = 0.8
    """Share of its CPU above which a server has none to spare."""
    most_cpu: float = 32.0
    """Maximum cores that a hot server gets, where the platform can change limits."""
    window_s: float = 5.0
    """Seconds of recent activity by which servers are compared."""
    times: int = 3
    """Consecutive checks that must agree before the guard acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRules:
    """Thresholds at which a worker counts as slow, and as recovered."""

    window_s: float = 20.0
    """Seconds over which the speed of workers is measured."""
    every_s: float = 15.0
    """Seconds between two decisions. With the window, a straggler's leases are halved well within a minute."""
    deviations: float = 3.0
    """Deviations below its peers' median at which a worker is a straggler. Three ignores ordinary spread."""
    floor: float = 0.1
    """Minimum deviation as a share of the median, so that tiny differences among equal workers do not count."""
    recovered: float = 0.85
    """Share of its peers' median at which a worker's leases grow again."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise errors.BadInput(f"straggler rule {each.name}={getattr(self, each.name)}: wanted more than 0")

    def changed(self, given: Mapping[str, float]) -> "StragglerRules":
        """Return these rules with some values replaced, by name. The suffix `_s` may be omitted."""
        known = {each.name.removesuffix("_s"): each.name for each in fields(self)}
        for name in given:
            if name.removesuffix("_s") not in known:
                raise errors.UnknownName("straggler rule", name, known)
        return replace(self, **{known[name.removesuffix("_s")]: value for name, value in given.items()})
