"""Measure contestants in alternating rounds, so that a slow minute of the machine affects all of them alike.

In: for each contestant, a function that measures one round and returns a figure (a rate, a latency, CPU seconds).
Out: `Rounds`, with medians and ratios by round; `Box`, which says how idle the machine was. Next: report.py.
Contestants in separate processes: peers.py.
"""

import contextlib
import os
import pathlib
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeVar

import msgspec
import psutil
from rich import console as rich_console
from rich import progress as rich_progress

from springtide_lab.bench.core.worker_side import line

IDLE_SHARE = 0.10  # share of all cores used by other processes; above it, ratios drift by more than their spread
STEAL_SHARE = 0.05  # share of all cores taken by the hypervisor
Item = TypeVar("Item")


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """Description of the machine, and its load. Shares are shares of all cores."""

    cpu: str
    cores: int
    memory_gib: float
    load_before: float
    others_before: float
    others_during: float
    steal_during: float
    idle: bool

    def sentence(self) -> str:
        used = (
            f"others used {self.others_before:.0%} before and {self.others_during:.0%} during, "
            f"steal {self.steal_during:.1%}"
        )
        if self.idle:
            return f"{self.cpu}, {self.cores} cores, idle: {used}"
        return f"{self.cpu}, {self.cores} cores, NOT IDLE ({used}): these figures are not reliable"


class MachineMoment(NamedTuple):
    """CPU time since boot, in seconds summed over cores."""

    at: float
    busy: float
    steal: float
    ours: float
    """CPU seconds of this process and its descendants."""


class Watch:
    """Measure how idle the machine is for `settle_s` seconds before a `with` block, and during it."""

    def __init__(self, *, settle_s: float) -> None:
        self._settle_s = settle_s
        self._load = os.getloadavg()[0]
        self._moments: list[MachineMoment] = []

    def __enter__(self) -> Self:
        self._moments.append(_now())
        time.sleep(self._settle_s)
        self._moments.append(_now())
        return self

    def __exit__(self, *_: object) -> None:
        self._moments.append(_now())

    def box(self) -> Box:
        settled, began, ended = self._moments
        others_before, _ = _shares(settled, began)
        others_during, steal = _shares(began, ended)
        return Box(
            cpu=_cpu_name(),
            cores=psutil.cpu_count(),
            memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
            load_before=round(self._load, 2),
            others_before=others_before,
            others_during=others_during,
            steal_during=steal,
            idle=max(others_before, others_during) <= IDLE_SHARE and steal <= STEAL_SHARE,
        )


def _shares(start: MachineMoment, end: MachineMoment) -> tuple[float, float]:
    """Return the shares of all cores that other processes and the hypervisor used between two moments."""
    capacity = (end.at - start.at) * psutil.cpu_count()
    others = (end.busy - start.busy) - (end.ours - start.ours)
    return _share(others, capacity), _share(end.steal - start.steal, capacity)


def _share(part: float, capacity: float) -> float:
    return round(min(1.0, max(0.0, part) / capacity), 4)


def _now() -> MachineMoment:
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return MachineMoment(time.monotonic(), busy, times.steal, _our_cpu_s())


def _our_cpu_s() -> float:
    own, total = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # the process ended meanwhile
            total += sum(process.cpu_times()[:4])  # user and system time of the process and its reaped children
    return total


def _cpu_name() -> str:
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return names[0] if names else platform.machine()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def scratch() -> Iterator[pathlib.Path]:
    """Yield a folder that exists for the time of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="springtide-bench-") as name:
        yield pathlib.Path(name)


def track(label: str, items: Iterable[Item], *, total: int | None = None) -> Iterator[Item]:
    """Yield the items and show progress on a terminal. Give `total` if `items` has no length."""
    if not sys.stderr.isatty():
        say(f"measuring {label}")
        return iter(items)
    screen = rich_console.Console(stderr=True)
    return iter(rich_progress.track(items, label[:50], total=total, console=screen, transient=True))


Measure = Callable[[], float | Mapping[str, float]]
"""Function that measures one round and returns its figure, or several named figures. The benchmark compares the figure
that is named "figure".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median and quartiles of the ratios of single rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Figures of every contestant by round; the figures `figures[name][i]` of one i were measured one after another."""

    figures: Mapping[str, Sequence[float]]
    parts: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Further figures of the same rounds, by part and contestant."""

    def part(self, name: str) -> "Rounds":
        return Rounds(figures=self.parts[name])

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    def ratio(self, ours: str, theirs: str) -> Ratio:
        """Return the ratio of `ours` to `theirs` over the rounds."""
        pairs = zip(self.figures[ours], self.figures[theirs], strict=True)
        return spread([mine / other for mine, other in pairs if other])

    @property
    def count(self) -> int:
        return min((len(figures) for figures in self.figures.values()), default=0)


def spread(ratios: Sequence[float]) -> Ratio:
    if not ratios:
        raise ValueError("no rounds to compare: every figure of the peer is 0")
    if len(ratios) == 1:
        return Ratio(value=ratios[0], low=ratios[0], high=ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(value=middle, low=low, high=high)


def alternate(contestants: Mapping[str, Measure], *, rounds: int, warmup: int = 1, label: str = "") -> Rounds:
    """Measure all contestants in turn, in alternating order. The first `warmup` turns do not count."""
    parts: dict[str, dict[str, list[float]]] = {"figure": {name: [] for name in contestants}}
    for turn in track(label or " / ".join(contestants), range(-warmup, rounds)):
        for name in contestants if turn % 2 == 0 else reversed(list(contestants)):
            measured = contestants[name]()
            if turn >= 0:
                for part, value in (measured if isinstance(measured, Mapping) else {"figure": measured}).items():
                    parts.setdefault(part, {}).setdefault(name, []).append(float(value))
    return Rounds(figures=parts.pop("figure"), parts=parts)


def rate(work: Callable[[], object], *, units: float, seconds: float) -> Callable[[], float]:
    """Return a measure that repeats `work` for about `seconds` and returns units of work per second."""

    def measure() -> float:
        done = line.repeat(work, seconds)
        return units * done.times / done.seconds

    return measure
