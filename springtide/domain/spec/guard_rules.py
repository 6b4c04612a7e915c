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
    """Add servers before their memory runs out, where it has a limit."""
    servers: bool = True
    """Move load away from a hot server, replace a slow one."""
    slower: float = 3.0
    """So many times its peers' time a key is slow."""
    far_slower: float = 10.0
    """So many times it, by each of the last two reports, is so slow that nothing more is waited for: its slots go to
    its peers at once, and from there to the server that takes its place."""
    throttled: float = 0.6
    """Of the time: a server whose quota was used up in so many of its periods, and that had so little in them..."""
    given: float = 0.5
    """...of the processors that it is to have, is held up by its machine for certain: the kernel has counted it."""
    hotter: float = 1.3
    """So many times its peers' keys a second is more load."""
    at_work: float = 0.15
    """Of the time: a server whose tables are at work for less holds nobody up, whatever its peers do."""
    busy: float = 0.8
    """Of its CPU: above that it has none to spare."""
    most_cpu: float = 32.0
    """Processors that a hot server is given at most, where its platform can change a limit."""
    window_s: float = 5.0
    """Servers are compared by what they did in the last seconds."""
    times: int = 3
    """So many looks in a row must agree before something is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRules:
    """Thresholds at which a worker counts as slow, and as recovered."""

    window_s: float = 20.0
    """Paces are those of so many seconds."""
    every_s: float = 15.0
    """Seconds between two decisions: with the window, a straggler's leases are halved well within a minute."""
    deviations: float = 3.0
    """How many deviations below its peers' median a worker must be: three, so that ordinary spread is left alone."""
    floor: float = 0.1
    """Deviations count as at least this part of the median, so that among equals a hair's breadth means nothing."""
    recovered: float = 0.85
    """Part of its peers' median at which a worker's leases grow again."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise errors.BadInput(f"straggler rule {each.name}={getattr(self, each.name)}: wanted more than 0")

    def changed(self, given: Mapping[str, float]) -> "StragglerRules":
        """These rules with some others, by name; the unit may be left out."""
        known = {each.name.removesuffix("_s"): each.name for each in fields(self)}
        for name in given:
            if name.removesuffix("_s") not in known:
                raise errors.UnknownName("straggler rule", name, known)
        return replace(self, **{known[name.removesuffix("_s")]: value for name, value in given.items()})
