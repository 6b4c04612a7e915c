"""Rounds: every contestant in turn, again and again, so that a slow minute of the machine hits all of them alike.

In: contestants, each with a callable that does one round and returns its figure (a rate, a latency, CPU seconds).
Out: Rounds, with medians and ratios round by round. Next: report.py. Peers in other processes: peers.py.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from springtide_lab.bench.core import progress

Measure = Callable[[], float]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One side of a comparison. `measure` does one round and returns its figure."""

    name: str
    measure: Measure
    close: Callable[[], None] = field(default=lambda: None)


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

    def median(self, name: str) -> float:
        """The middle figure of one contestant."""
        return statistics.median(self.figures[name])

    def ratio(self, ours: str, theirs: str) -> Ratio:
        """How much more `ours` measured than `theirs`, round by round."""
        pairs = zip(self.figures[ours], self.figures[theirs], strict=True)
        return spread([mine / other for mine, other in pairs if other])

    @property
    def count(self) -> int:
        """How many rounds there were."""
        return min((len(figures) for figures in self.figures.values()), default=0)


def spread(ratios: Sequence[float]) -> Ratio:
    """Median and quartiles of some ratios."""
    if not ratios:
        raise ValueError("no rounds to compare: every figure of the other side is 0")
    if len(ratios) == 1:
        return Ratio(value=ratios[0], low=ratios[0], high=ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(value=middle, low=low, high=high)


def alternate(contestants: Sequence[Contestant], *, rounds: int, warmup: int = 1, label: str = "") -> Rounds:
    """Let all contestants measure in turn, forwards and backwards, after `warmup` turns that do not count.

    The contestants are closed at the end, also when one of them raises.
    """
    figures: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    try:
        with progress.bar(label or " / ".join(figures), total=rounds + warmup) as step:
            for turn in range(-warmup, rounds):
                for contestant in contestants if turn % 2 == 0 else reversed(contestants):
                    figure = contestant.measure()
                    if turn >= 0:
                        figures[contestant.name].append(figure)
                step()
    finally:
        for contestant in contestants:
            contestant.close()
    return Rounds(figures=figures)


def rate(work: Callable[[], object], *, units: float, seconds: float) -> Measure:
    """A measure that repeats `work` for about `seconds` and returns units of work a second."""

    def measure() -> float:
        began = time.perf_counter()
        times = 0
        while (took := time.perf_counter() - began) < seconds or not times:
            work()
            times += 1
        return units * times / took

    return measure


def cycle(items: Sequence[Item]) -> Callable[[], Item]:
    """The items one after the other, for ever: fresh batches for each repetition."""
    iterator = itertools.cycle(items)
    return lambda: next(iterator)
