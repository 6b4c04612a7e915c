"""`springtide reproduce kale`: all rows, and a page with pictures.

In: seeds (days of each kind of traffic), perhaps traces. Out: rows; PNG files and HTML. Kinds of traffic are worked on
side by side, in processes. What decides in ours is `springtide.planning.online`. Next: reproduce/command.py prints,
tools/reproduction_page.py publishes.
"""

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from springtide import errors
from springtide_lab.reproduce import parallel, report
from springtide_lab.reproduce.kale import auc, comparison, pictures, rows, schemes, throughput, traffic
from springtide_lab.reproduce.kale.comparison import Compared, TrafficKind
from springtide_lab.reproduce.kale.traffic import Trace
from springtide_lab.reproduce.report import Row

TUNED_ON = 5
"""Days on which settings are chosen."""
OTHER_DAYS = 1000
"""Seeds of the paper's shape from here on are for choosing settings."""
CURVES = 3
"""Seeds of AUC against lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KalePreset:
    """How much is done."""

    traces: tuple[pathlib.Path, ...] = ()
    tuned_on: int = TUNED_ON
    most_settings: int | None = None
    hours: int = 24
    """Of each day, from midnight on."""
    stream: auc.StreamSize = auc.USUAL
    processes: int = 0
    """0: as many as there are cores; 1: none besides this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came out."""

    rows: list[Row]
    compared: list[Compared]
    curve: list[float]


def found_traces(given: str | None) -> tuple[pathlib.Path, ...]:
    """CSV files: one, or all of a folder; by themselves those in data/traces, here or in a folder beside this one."""
    if given is None:
        here = pathlib.Path.cwd()
        known = [one for one in (here / "data/traces", *sorted(here.parent.glob("*/data/traces"))) if one.is_dir()]
        return tuple(sorted(known[0].glob("*.csv"))) if known else ()
    path = pathlib.Path(given)
    if not path.is_dir():
        return (path,)
    inside = tuple(sorted(path.glob("*.csv")))
    if not inside:
        raise errors.MissingFile(f"--trace {given}: no .csv file in this folder")
    return inside


def reproduce(seeds: range, preset: KalePreset, *, say: Callable[[str], None] = lambda _: None) -> Found:
    kinds = [_papers(len(seeds), preset), *(_of(traffic.read(path), len(seeds), preset) for path in preset.traces)]
    say(f"AUC against lag: {len(seeds[:CURVES])} streams")
    curves = [auc.against_lag(seed, preset.stream).tolist() for seed in seeds[:CURVES]]
    curve = [float(np.mean(one)) for one in zip(*curves, strict=True)]
    tried = sum(len(comparison.thinned(grid, preset.most_settings)) for _, grid in schemes.GRIDS.values())
    say(f"{len(kinds)} kinds of traffic, {len(seeds)} days each; {tried} settings on {preset.tuned_on} other days")
    jobs = [(kind, curve, preset.most_settings) for kind in kinds]
    compared = parallel.each(_one, jobs, processes=preset.processes)
    found: list[Row] = []
    for one in compared:
        found += rows.goals(one)
    for one in compared:
        found += rows.table(one)
    found += rows.lag_and_auc(curves)
    for kind in kinds:
        found += rows.forecasts(kind.name, kind.measured)
    return Found(rows=[*found, *throughput.rows(list(seeds))], compared=compared, curve=curve)


def write(folder: pathlib.Path, found: Found) -> list[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures.draw(folder, found.compared, found.curve)
    return report.write(folder, "kale", found.rows, drawn, title="Kale, reproduced")


def _papers(days: int, preset: KalePreset) -> TrafficKind:
    return TrafficKind(
        name=rows.PAPERS_SHAPE,
        measured=tuple(traffic.paper(seed).first(preset.hours) for seed in range(days)),
        tuned_on=tuple(traffic.paper(OTHER_DAYS + seed).first(preset.hours) for seed in range(preset.tuned_on)),
    )


def _of(trace: Trace, days: int, preset: KalePreset) -> TrafficKind:
    """Days to measure are the first of an order by chance, days to choose settings on the last."""
    order = [day.first(preset.hours) for day in trace.drawn(len(trace.days))]
    if len(order) < days + preset.tuned_on:
        raise errors.BadInput(
            f"--seeds {days}: {trace.name} has {len(order)} days that can be used, {preset.tuned_on} of them to choose "
            f"settings; wanted {len(order) - preset.tuned_on} seeds at most"
        )
    return TrafficKind(name=trace.name, measured=tuple(order[:days]), tuned_on=tuple(order[-preset.tuned_on :]))


def _one(job: tuple[TrafficKind, Sequence[float], int | None]) -> Compared:
    kind, curve, most = job
    return comparison.compare(kind, curve, most_settings=most)
