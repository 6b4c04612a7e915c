"""Is the box ours alone? A timing taken beside another busy process can be wrong by ten times, so every result says.

In: /proc (elsewhere the answer is "unknown"). Out: Box, with what the machine is and how busy others kept it before
and during the measurement. Next: report.py prints it.
"""

import os
import pathlib
import platform
import time
from dataclasses import dataclass
from typing import Self

import msgspec

IDLE_SHARE = 0.10  # of all cores, used by others: above it ratios drift by more than their spread
STEAL_SHARE = 0.05  # taken by the hypervisor


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and how idle it was. Shares are of all cores together; None: this system does not say."""

    cpu: str
    cores: int
    memory_gib: float
    load_before: float
    others_before: float | None
    others_during: float | None
    steal_during: float | None
    idle: bool | None

    def sentence(self) -> str:
        """What a reader of the figures must know."""
        if self.others_before is None or self.others_during is None or self.steal_during is None:
            return f"{self.cpu}, {self.cores} cores; this system does not say how busy others keep it"
        used = (
            f"others used {self.others_before:.0%} before and {self.others_during:.0%} during, "
            f"steal {self.steal_during:.1%}"
        )
        if self.idle:
            return f"{self.cpu}, {self.cores} cores, idle: {used}"
        return f"{self.cpu}, {self.cores} cores, NOT IDLE ({used}): do not trust these figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """CPU time since boot, in seconds summed over cores."""

    at: float
    busy: float
    steal: float
    ours: float


class Watch:
    """Looks at the machine for `settle_s` before and then during a `with` block."""

    def __init__(self, *, settle_s: float) -> None:
        self._settle_s = settle_s
        self._load = os.getloadavg()[0]
        self._moments: list[Moment | None] = []

    def __enter__(self) -> Self:
        self._moments.append(_now())
        time.sleep(self._settle_s)
        self._moments.append(_now())
        return self

    def __exit__(self, *_: object) -> None:
        self._moments.append(_now())

    def box(self) -> Box:
        """What was seen, once the block is over."""
        settled, began, ended = self._moments
        before = _shares(settled, began)
        during = _shares(began, ended)
        idle = None
        if before and during:
            idle = max(before[0], during[0]) <= IDLE_SHARE and during[1] <= STEAL_SHARE
        return Box(
            cpu=_cpu_name(),
            cores=os.cpu_count() or 1,
            memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            load_before=round(self._load, 2),
            others_before=before[0] if before else None,
            others_during=during[0] if during else None,
            steal_during=during[1] if during else None,
            idle=idle,
        )


def _shares(start: Moment | None, end: Moment | None) -> tuple[float, float] | None:
    """Others' share of all cores and the hypervisor's between two moments."""
    if start is None or end is None or end.at <= start.at:
        return None
    capacity = (end.at - start.at) * (os.cpu_count() or 1)
    others = (end.busy - start.busy) - (end.ours - start.ours)
    return _share(others, capacity), _share(end.steal - start.steal, capacity)


def _share(part: float, capacity: float) -> float:
    """Between nothing and all: ticks are coarse, and a moment is not one where other processes come between."""
    return round(min(1.0, max(0.0, part) / capacity), 4)


def _now() -> Moment | None:
    try:
        first = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(value) / tick for value in first[:8])
    busy = user + nice + system + irq + softirq
    return Moment(at=time.monotonic(), busy=busy, steal=steal, ours=_our_cpu_s(tick))


def _our_cpu_s(tick: int) -> float:
    """CPU time of this process, its living descendants, and the children that they and it have reaped."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended while we looked
        pid = int(entry.name)
        parents[pid] = int(after_name[1])
        used[pid] = sum(int(value) for value in after_name[11:15]) / tick  # own and reaped, user and system
    me = os.getpid()
    total = 0.0
    for pid, seconds in used.items():
        ancestor = pid
        while ancestor > 1 and ancestor != me:
            ancestor = parents.get(ancestor, 0)
        total += seconds if ancestor == me else 0.0
    return total


def _cpu_name() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.machine()


def available_bytes() -> int:
    """Memory that programs could take now, as the kernel estimates it."""
    for entry in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if entry.startswith("MemAvailable:"):
            return int(entry.split()[1]) * 1024
    return 0
