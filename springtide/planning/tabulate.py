"""Pure. Profiles of one job, one row a configuration; what is of no use is left out and counted.

In: `Profile`s, as they came. Out: a `Table`, or `Refused` with the reason. Next: `planning.fit`.

A configuration that was measured for hours must not outvote one that was probed for a minute, so that windows of one
configuration become one row, the window of median length: an odd one among several changes nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide.domain.profile import Profile

RECENT = 16
"""Windows of one configuration that count, the newest: jobs change as their tables grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why there is no model; a value, since a loop that plans must go on without one."""

    why: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Profiles of no use, by reason."""


class Setting(NamedTuple):
    """A configuration, as far as it matters to the time of a step."""

    workers: float
    servers: float
    worker_cpu: float
    server_cpu: float
    batch: float


class Times(NamedTuple):
    """Seconds of a step of one worker, and of its four terms."""

    step: float
    gradient: float
    update: float
    synchronization: float
    lookup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Usable measurements: what was measured in each configuration."""

    settings: tuple[Setting, ...]
    times: tuple[Times, ...]
    windows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def timed(self) -> bool:
        """Whether every step was timed by term."""
        return all(one.gradient + one.update + one.synchronization + one.lookup > 0 for one in self.times)

    def without(self, row: int) -> "Table":
        """All configurations but one."""
        return Table(
            settings=self.settings[:row] + self.settings[row + 1 :], times=self.times[:row] + self.times[row + 1 :]
        )


def tabulate(profiles: Iterable[Profile]) -> Table | Refused:
    """Sort out what is of no use and put the rest together by configuration."""
    dropped: Counter[str] = Counter()
    found: dict[Setting, list[Times]] = {}
    for profile in profiles:
        times = _times(profile)
        if isinstance(times, str):
            dropped[times] += 1
            continue
        shape = profile.shape
        key = Setting(shape.workers, shape.servers, shape.worker_cpu, shape.server_cpu, profile.batch)
        found.setdefault(key, []).append(times)
    if not found:
        said = ", ".join(f"{count} with {why}" for why, count in dropped.items())
        return Refused(why=f"no usable profile{f': {said}' if said else ' yet'}", dropped=dropped)
    return Table(
        settings=tuple(found),
        times=tuple(_middle(times[-RECENT:]) for times in found.values()),
        windows=sum(map(len, found.values())),
        dropped=dropped,
    )


def _times(profile: Profile) -> Times | str:
    """Seconds a step, or what is wrong with the profile."""
    timing, steps = profile.timing, profile.timing.steps
    if not steps > 0 or not profile.batch > 0:
        return "no steps"
    times = Times(
        timing.total_s / steps, timing.gradient_s / steps, timing.update_s / steps, timing.synchronization_s / steps,
        timing.lookup_s / steps,
    )  # fmt: skip
    if not math.isfinite(sum(times)):
        return "times that are no numbers"
    if times[0] <= 0:
        return "no time at all"
    return times if min(times) >= 0 else "times below 0"


def _middle(windows: list[Times]) -> Times:
    """The window whose step took the median time: its terms belong together."""
    return sorted(windows)[(len(windows) - 1) // 2] if len(windows) > 1 else windows[0]
