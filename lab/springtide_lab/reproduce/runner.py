"""Run `springtide reproduce NAME`: compute a paper's figures with this code and print them beside the paper's.

In: `ReproduceOptions`. Out: a table, one JSON object and, if a folder is given, pictures in that folder. `PAPERS` lists
the papers; the `reproduction` module of each has `reproduce(seeds, options)`, which returns a `Reproduced`.
"""

import concurrent.futures
import datetime
import importlib
import multiprocessing
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from springtide import child_guard, errors
from springtide.sim import report as sim_report
from springtide_lab.bench.core.harness import say
from springtide_lab.reproduce import report
from springtide_lab.reproduce.report import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceOptions:
    """Options of the user; None means the reproduction's default."""

    seeds: int | None = None
    jobs: int | None = None
    quick: bool = False
    ids: str | None = None
    trace: str | None = None
    metrics: tuple[str, ...] = ()


class Reproduced(NamedTuple):
    """The result of one reproduction."""

    rows: list[Row]
    facts: dict[str, Any]
    """Sizes of the run that belong in its report, such as the number of jobs."""


class Paper(NamedTuple):
    """A paper: its module, its default number of seeds, and the options that it accepts."""

    module: str
    seeds: int = 3
    options: tuple[str, ...] = ()


PAPERS = {
    "dlrover-rm": Paper("dlrover_rm", options=("--jobs",)),
    "herald": Paper("herald", options=("--ids",)),
    "goldminer": Paper("goldminer", seeds=10, options=("--jobs", "--trace", "--metric")),
    "kale": Paper("kale", seeds=20, options=("--trace",)),
}


def run(name: str, options: ReproduceOptions, *, folder: pathlib.Path | None, as_json: bool) -> None:
    if name not in PAPERS:
        raise errors.UnknownName("reproduction", name, PAPERS)
    paper = PAPERS[name]
    _check_options(name, options)
    if folder is not None:
        sim_report.pyplot()  # raises before minutes of computing if matplotlib is missing
    seeds = range(options.seeds or (1 if options.quick else paper.seeds))
    module = importlib.import_module(f"springtide_lab.reproduce.{paper.module}.reproduction")
    done: Reproduced = module.reproduce(seeds, options)
    remark = " (quick: only checks that the reproduction works)" if options.quick else ""
    sizes = ", ".join(f"{value} {word}" for word, value in done.facts.items())
    report.show(done.rows, title=f"{name}: {len(seeds)} seeds, {sizes}{remark}")
    if folder is not None:
        for path in report.draw(done.rows, name, folder):
            say(str(path))
    if as_json:
        facts = {"seeds": len(seeds), "quick": options.quick, "date": datetime.date.today().isoformat()}
        print(
            msgspec.json.encode({"rows": done.rows, "reproduction": name, **done.facts, **facts}).decode(), flush=True
        )


def _check_options(name: str, options: ReproduceOptions) -> None:
    given = {
        "--ids": options.ids,
        "--trace": options.trace,
        "--metric": next(iter(options.metrics), None),
        "--jobs": options.jobs,
    }
    for option, value in given.items():
        if value is not None and option not in PAPERS[name].options:
            takers = " and ".join(other for other, paper in PAPERS.items() if option in paper.options)
            raise errors.BadInput(
                f"{option} {value}: {name} has no use for it; it is an option of `springtide reproduce {takers}`"
            )


Thing = TypeVar("Thing")
Found = TypeVar("Found")


def in_parallel(do: Callable[[Thing], Found], things: Sequence[Thing], *, processes: int = 0) -> list[Found]:
    """Call `do` for each item; 0 processes means one per core. Child processes never outlive this process."""
    processes = min(processes or os.cpu_count() or 1, len(things))
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [do(thing) for thing in things]
    with concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), initializer=child_guard.die_with, initargs=(os.getpid(),)
    ) as pool:
        return list(pool.map(do, things))
