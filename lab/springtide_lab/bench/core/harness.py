"""Rounds: every contestant in turn, again and again, so that a slow minute of the machine hits all of them alike.

In: a function for each contestant that does one round and returns its figure (a rate, a latency, CPU seconds). Out:
`Rounds`, with medians and ratios round by round; `Box`, how idle the machine was. Next: report.py. Processes: peers.py.
"""

import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

import msgspec
from rich import console as rich_console
from rich import progress as rich_progress

from springtide_lab.bench.core.worker_side import line

IDLE_SHARE = 0.10  # of all cores, used by others: above it ratios drift by more than their spread
STEAL_SHARE = 0.05  # taken by the hypervisor
Item = TypeVar("Item")


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
class MachineMoment:
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
        self._moments: list[MachineMoment | None] = []

    def __enter__(self) -> Self:
        self._moments.append(_now())
        time.sleep(self._settle_s)
        self._moments.append(_now())
        return self

    def __exit__(self, *_: object) -> None:
        self._moments.append(_now())

    def box(self) -> Box:
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


def _shares(start: MachineMoment | None, end: MachineMoment | None) -> tuple[float, float] | None:
    """Others' share of all cores and the hypervisor's between two moments."""
    if start is None or end is None or end.at <= start.at:
        return None
    capacity = (end.at - start.at) * (os.cpu_count() or 1)
    others = (end.busy - start.busy) - (end.ours - start.ours)
    return _share(others, capacity), _share(end.steal - start.steal, capacity)


def _share(part: float, capacity: float) -> float:
    return round(min(1.0, max(0.0, part) / capacity), 4)


def _now() -> MachineMoment | None:
    try:
        first = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(value) / tick for value in first[:8])
    busy = user + nice + system + irq + softirq
    return MachineMoment(at=time.monotonic(), busy=busy, steal=steal, ours=_our_cpu_s(tick))


def _our_cpu_s(tick: int) -> float:
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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def track(label: str, items: Iterable[Item], *, total: int | None = None) -> Iterator[Item]:
    """Yield the items and show progress on a terminal; `total` where the number of items is not known."""
    if not sys.stderr.isatty():
        say(f"measuring {label}")
        return iter(items)
    screen = rich_console.Console(stderr=True)
    return iter(rich_progress.track(items, label[:50], total=total, console=screen, transient=True))


Measure = Callable[[], float | Mapping[str, float]]
"""Does one round and returns its figure; or several parts of it, with the one to compare named "figure"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median of the ratios of single rounds, and the quartiles around it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What every contestant measured, round by round: `figures[name][i]` are neighbours in time for one i."""

    figures: Mapping[str, Sequence[float]]
    parts: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Whatever else they measured in the same rounds, by part and contestant."""

    def part(self, name: str) -> "Rounds":
        return Rounds(figures=self.parts[name])

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    def ratio(self, ours: str, theirs: str) -> Ratio:
        """How much more `ours` measured than `theirs`, round by round."""
        pairs = zip(self.figures[ours], self.figures[theirs], strict=True)
        return spread([mine / other for mine, other in pairs if other])

    @property
    def count(self) -> int:
        return min((len(figures) for figures in self.figures.values()), default=0)


def spread(ratios: Sequence[float]) -> Ratio:
    if not ratios:
        raise ValueError("no rounds to compare: every figure of the other side is 0")
    if len(ratios) == 1:
        return Ratio(value=ratios[0], low=ratios[0], high=ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(value=middle, low=low, high=high)


def alternate(contestants: Mapping[str, Measure], *, rounds: int, warmup: int = 1, label: str = "") -> Rounds:
    """Let all contestants measure in turn, forwards and backwards, after `warmup` turns that do not count."""
    parts: dict[str, dict[str, list[float]]] = {"figure": {name: [] for name in contestants}}
    for turn in track(label or " / ".join(contestants), range(-warmup, rounds)):
        for name in contestants if turn % 2 == 0 else reversed(list(contestants)):
            measured = contestants[name]()
            if turn >= 0:
                for part, value in (measured if isinstance(measured, Mapping) else {"figure": measured}).items():
                    parts.setdefault(part, {}).setdefault(name, []).append(float(value))
    return Rounds(figures=parts.pop("figure"), parts=parts)


def rate(work: Callable[[], object], *, units: float, seconds: float) -> Callable[[], float]:
    """A measure that repeats `work` for about `seconds` and returns units of work a second."""

    def measure() -> float:
        done = line.repeat(work, seconds)
        return units * done.times / done.seconds

    return measure
