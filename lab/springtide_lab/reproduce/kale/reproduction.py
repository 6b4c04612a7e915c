"""Reproduce Kale (003): all rows, and pictures of AUC against lag, Table 3 and days.

In: seeds (days of each kind of traffic), optionally traces. Kinds of traffic are simulated in parallel processes. Our
planner is that of real jobs, `springtide.planning.online`. Next: `comparison`, `rows`, `throughput`.
"""

import functools
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide import errors
from springtide_lab import charts
from springtide_lab.bench.core import harness
from springtide_lab.charts import BLUE, GREEN, GREY, ORANGE, RED, Bar, Curve, Panel
from springtide_lab.reproduce import runner
from springtide_lab.reproduce.kale import auc, comparison, rows, schemes, throughput, world
from springtide_lab.reproduce.kale.auc import LAGS_MIN
from springtide_lab.reproduce.kale.comparison import OURS, Compared, TrafficKind
from springtide_lab.reproduce.kale.rows import METRICS, SCHEMES, TABLE_3
from springtide_lab.reproduce.kale.world import CAPACITY, Trace
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

TUNED_ON = 5
"""Number of days on which settings are chosen."""
OTHER_DAYS = 1000
"""First seed of the days in the paper's shape on which settings are chosen."""
CURVES = 3
"""Number of seeds for AUC against lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KalePreset:
    """Size of the reproduction."""

    traces: tuple[pathlib.Path, ...] = ()
    tuned_on: int = TUNED_ON
    most_settings: int | None = None
    hours: int = 24
    """Measured hours of each day, from midnight on."""
    stream: auc.StreamSize = auc.USUAL
    processes: int = 0
    """Number of processes; 0 means one per core, 1 only this process."""


def found_traces(given: str | None) -> tuple[pathlib.Path, ...]:
    """Return the given CSV file, or all CSV files of the given folder.

    By default, return those of data/traces in the current folder or in a folder beside it.
    """
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


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    traces = () if options.quick and options.trace is None else found_traces(options.trace)
    preset = KalePreset(traces=traces)
    if options.quick:
        preset = KalePreset(traces=traces, tuned_on=1, most_settings=4, hours=6, stream=auc.QUICK, processes=1)
    kinds = [_papers(len(seeds), preset), *(_of(world.read(path), len(seeds), preset) for path in traces)]
    harness.say(f"AUC against lag: {len(seeds[:CURVES])} streams")
    curves = [auc.against_lag(seed, preset.stream).tolist() for seed in seeds[:CURVES]]
    curve = [float(np.mean(points)) for points in zip(*curves, strict=True)]
    tried = sum(len(comparison.thinned(grid, preset.most_settings)) for _, grid in schemes.GRIDS.values())
    harness.say(
        f"{len(kinds)} kinds of traffic, {len(seeds)} days each; {tried} settings on {preset.tuned_on} other days"
    )
    jobs = [(kind, curve, preset.most_settings) for kind in kinds]
    compared = runner.in_parallel(_one, jobs, processes=preset.processes)
    found = [row for one in compared for row in rows.goals(one)]
    found += [row for one in compared for row in rows.table(one)]
    found += rows.lag_and_auc(curves)
    found += [row for kind in kinds for row in rows.forecasts(kind.name, kind.measured)]
    found += throughput.rows(list(seeds))
    facts = {"traces": [path.name for path in traces]} if traces else {}
    return Reproduced(found, facts, functools.partial(draw, compared, curve))


def _papers(days: int, preset: KalePreset) -> TrafficKind:
    return TrafficKind(
        name=rows.PAPERS_SHAPE,
        measured=tuple(world.paper(seed).first(preset.hours) for seed in range(days)),
        tuned_on=tuple(world.paper(OTHER_DAYS + seed).first(preset.hours) for seed in range(preset.tuned_on)),
    )


def _of(trace: Trace, days: int, preset: KalePreset) -> TrafficKind:
    order = [day.first(preset.hours) for day in trace.drawn(len(trace.days))]
    if len(order) < days + preset.tuned_on:
        raise errors.BadInput(
            f"--seeds {days}: {trace.name} has {len(order)} days that can be used, {preset.tuned_on} of them to choose "
            f"settings; give {len(order) - preset.tuned_on} seeds at most"
        )
    return TrafficKind(name=trace.name, measured=tuple(order[:days]), tuned_on=tuple(order[-preset.tuned_on :]))


def _one(job: tuple[TrafficKind, Sequence[float], int | None]) -> Compared:
    kind, curve, most = job
    return comparison.compare(kind, curve, most_settings=most)


def draw(compared: Sequence[Compared], curve: Sequence[float], folder: pathlib.Path) -> list[pathlib.Path]:
    auc_points = Curve(LAGS_MIN, [100 * point for point in curve])
    lag = Panel(
        title="Fig. 1: a model that lags behind a stream whose truth turns",
        x="lag, minutes",
        y="AUC, %",
        curves=(auc_points, auc_points._replace(style="o")),
        lines=(("x", 20),),
    )
    return [
        charts.draw(folder / "kale-fig1-auc.png", [lag], size=(5, 3.2)),
        _table_3(folder / "kale-fig9-table3.png", compared[0]),
        *(_day(folder / f"kale-fig{10 + place}-day.png", one) for place, one in enumerate(compared)),
        _trade(folder / "kale-fig20-settings.png", compared),
    ]


def _table_3(path: pathlib.Path, found: Compared) -> pathlib.Path:
    """Draw Table 3 and Fig. 9."""
    panels = []
    for place, metric in enumerate(METRICS):
        bars = []
        for scheme in (scheme for scheme in SCHEMES if ("A", scheme) in found.figures):
            values = found.figures["A", scheme][:, place] * (100 if place == 0 else 1)
            middle, half = float(values.mean()), 1.96 * float(values.std()) / len(values) ** 0.5
            paper = TABLE_3[scheme][place] if scheme in TABLE_3 else None
            colour = BLUE if scheme == OURS else GREY
            bars.append(Bar(scheme, middle, middle - half, middle + half, paper, colour))
        panels.append(Panel(x=metric, bars=bars))
    title = "Table 3, A: every change pauses the job for 10 minutes"
    return charts.draw(path, panels, title=title, size=(13, 3.2))


def _day(path: pathlib.Path, found: Compared) -> pathlib.Path:
    """Draw Fig. 10: workers, lag and worker-hours of a day."""
    traffic_of_day = found.stories["A", OURS].traffic
    hours = (np.arange(len(traffic_of_day)) / 60).tolist()
    fewest = np.searchsorted(CAPACITY, traffic_of_day, side="right").tolist()
    workers, lag, spent = [Curve(hours, fewest, "fewest that keep up", GREY)], list[Curve](), list[Curve]()
    for table, scheme, colour in (("A", "HPA", RED), ("A", "Kale", ORANGE), ("A", OURS, BLUE), ("B", OURS, BLUE)):
        story, style = found.stories[table, scheme], ":" if table == "B" else "-"
        label = f"{scheme}, live" if table == "B" else scheme
        workers.append(Curve(hours, story.workers.tolist(), label, colour, style))
        lag.append(Curve(hours, story.lag_min.tolist(), "", colour, style))
        spent.append(Curve(hours, (np.cumsum(story.workers) / 60).tolist(), "", colour, style))
    panels = (
        Panel(y="workers", curves=workers),
        Panel(y="lag, min", curves=lag, lines=(("y", 20),)),
        Panel(x="hour of the day", y="worker-hours", curves=spent),
    )
    return charts.draw(path, panels, title=f"A day of {found.name}", size=(9, 6.4), stacked=True)


def _trade(path: pathlib.Path, compared: Sequence[Compared]) -> pathlib.Path:
    panels = []
    for found in compared:
        curves = []
        for scheme, colour in (("HPA", RED), ("Kale", ORANGE), ("Madu", GREEN)):
            tried = found.tuned["A", scheme].figures
            keeps = tried[tried[:, 0] <= comparison.PROMISED]
            curves.append(Curve(keeps[:, 3].tolist(), (keeps[:, 1] + 1).tolist(), scheme, colour, "."))
        mine = found.on_tuning_days["A"].mean(axis=0)
        curves.append(Curve([float(mine[3])], [float(mine[1] + 1)], OURS, BLUE, "*"))
        panels.append(Panel(title=found.name, x="worker-hours", y="lag, min", curves=curves, log="y"))
    return charts.draw(path, panels, size=(3.4 * len(compared), 3.2))
