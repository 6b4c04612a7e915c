"""Searches for a history with a violation, and removes the faults that do not matter for it.

In: a seed and a number of seconds or histories. Out: a `Report`. Every LONG-th history is a long one
(`long_histories`), with planned shapes and minutes of faults.
"""

import gc
import logging
import pathlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.virtual_jobs import histories, long_histories
from tests.virtual_jobs.histories import Case, History

LONG = 1000


@dataclass(slots=True)
class Report:
    """The result of a search."""

    seed: int
    histories: int = 0
    moves: int = 0
    core_s: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    wrong: list[History] = field(default_factory=list)
    wrong_long: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        a_minute = 60 * self.histories / self.core_s if self.core_s else 0.0
        faults = ", ".join(f"{kind} {count:,}" for kind, count in self.happened.most_common())
        return [
            f"seed {self.seed}: {self.histories:,} histories in {self.core_s:.1f} s of core time, {a_minute:,.0f} a "
            f"minute; {self.moves:,} requests to masters; {len(self.wrong) + len(self.wrong_long)} violations",
            f"faults: {faults}",
        ]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the masters' warnings, and let the garbage collector skip permanent objects."""
    logging.disable(logging.CRITICAL)
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        logging.disable(logging.NOTSET)


def search(seed: int, go_on: Callable[[Report], bool], *, long: int = LONG) -> Report:
    """Run histories from this seed on, as long as `go_on` returns True."""
    report, began = Report(seed), time.process_time()
    with quiet():
        while go_on(report):
            number = seed + report.histories
            if long and number % long == long - 1:
                _happen_long(number, report)
            else:
                history = histories.happen(histories.draw(number))
                report.happened += history.happened
                report.moves += history.moves
                if history.violations:
                    report.wrong.append(history)
            report.histories += 1
            report.core_s = time.process_time() - began
    return report


def first_violation(seed: int, most: int) -> tuple[int, History | None]:
    """Return how many histories it took to find a violation, and the history; None after `most` histories."""
    report = search(seed, lambda so_far: not so_far.wrong and so_far.histories < most, long=0)
    return report.histories, report.wrong[0] if report.wrong else None


def shrink(history: History) -> History:
    """Remove faults as long as a violation remains."""
    with quiet():
        least, tried = history, 0
        while tried < len(least.case.faults):
            faults = least.case.faults
            smaller = histories.happen(replace(least.case, faults=faults[:tried] + faults[tried + 1 :]))
            least, tried = (smaller, tried) if smaller.violations else (least, tried + 1)
    return least


def tell(history: History) -> list[str]:
    """Return the events of a history, one line each."""
    case = history.case
    setup = case.setup
    faults = ", ".join(f"{fault.kind} at {fault.at:g} s" for fault in case.faults)
    return [
        f"seed {case.seed}: {setup.shape.workers} workers, {setup.shape.servers} servers, {setup.card.batches} "
        f"batches, a checkpoint every {setup.save_every_s:g} s; {faults or 'no fault'}",
        *(f"  {at:8.3f} s  {who:8} {text}" for at, who, text in history.story),
        *(f"  wrong: {violation}" for violation in history.violations),
    ]


def _happen_long(seed: int, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        try:
            told = long_histories.tell(seed, pathlib.Path(folder))
        except (AssertionError, TimeoutError) as error:
            report.wrong_long.append(f"long history of seed {seed}: {type(error).__name__}: {error}")
            return
    report.happened += told.happened
    if not told.outcome.right:
        report.wrong_long.append(f"long history of seed {seed}: {told.outcome}")


__all__ = ["Case", "Report", "first_violation", "search", "shrink", "tell"]
