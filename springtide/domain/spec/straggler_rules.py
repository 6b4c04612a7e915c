"""Pure. When a worker counts as slow. In: the command line, by `domain.spec.job_spec.JobSpec`. Next:
`job.stragglers.stragglers` decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from springtide import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRules:
    """When a worker counts as slow, and when as recovered."""

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
