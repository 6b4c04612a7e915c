"""Reproduce GoldMiner (002): all rows, and pictures of Table 5 and Figs. 13 and 14.

In: seeds, a number of jobs, optionally a trace. The code that allocates cores and tunes jobs is that of real jobs:
`springtide.planning.dataworkers`. Next: `rows`.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from springtide.planning.dataworkers import allocation
from springtide_lab import charts
from springtide_lab.bench.core import harness
from springtide_lab.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Curve, Panel
from springtide_lab.reproduce.goldminer import cluster, jobs, rows, systems
from springtide_lab.reproduce.goldminer.cluster import walk
from springtide_lab.reproduce.goldminer.jobs import JOBS, MODELS, TracePreset
from springtide_lab.reproduce.goldminer.systems import FIXED, MAXTP, SYSTEMS, TUNED
from springtide_lab.reproduce.report import Row, bars_of
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

QUICK_JOBS = 30
VARIED_SEEDS = 8
"""Number of seeds for the sensitivity rows."""


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    preset = TracePreset(jobs=options.jobs or (QUICK_JOBS if options.quick else JOBS), trace=options.trace)
    found = rows_of(seeds, preset, options.metrics)
    facts: dict[str, Any] = {"jobs": preset.jobs}
    if options.trace is not None:
        facts["trace"] = pathlib.Path(options.trace).name
    return Reproduced(found, facts, functools.partial(draw, found, preset, seeds[0]))


def rows_of(seeds: Sequence[int], preset: TracePreset, metrics: Sequence[str] = ()) -> list[Row]:
    """Return all rows; `metrics` names additional metrics of the user."""
    for name in metrics:
        allocation.load(name)
    which = (*SYSTEMS, *map(systems.own, metrics))
    harness.say(f"64 GPUs: {preset.jobs} jobs, {len(which)} systems, {len(seeds)} seeds")
    results = rows.results(preset, seeds, which)
    found = [*rows.table_5(results), *rows.others(results), *rows.bounds(preset, results, seeds), *rows.use(results)]
    varied = list(seeds)[:VARIED_SEEDS]
    harness.say(f"sensitivity: {len(rows.VARIANTS)} other worlds, {len(varied)} seeds")
    return [*found, *rows.of_one_job(), *rows.sensitivity(preset, varied)]


def draw(found: Sequence[Row], preset: TracePreset, seed: int, folder: pathlib.Path) -> list[pathlib.Path]:
    return [
        _walk(folder / "goldminer-fig13.png"),
        _use(folder / "goldminer-fig14.png", preset, seed),
        _table(folder / "goldminer-fig15-table5.png", found),
        _gains(folder / "goldminer-fig16-sensitivity.png", found),
    ]


def _table(path: pathlib.Path, found: Sequence[Row]) -> pathlib.Path:
    panels = []
    for what in ("JCT, min", "queueing, min"):
        names = [f"{system.name}: {what}" for system in SYSTEMS]
        shown = bars_of((row for row in found if row.what in names), lambda row: row.what.partition(":")[0])
        panels.append(Panel(x=what, bars=shown))
    return charts.draw(path, panels, title="Table 5: completion and queueing", size=(9, 3.4))


def _use(path: pathlib.Path, preset: TracePreset, seed: int) -> pathlib.Path:
    """Draw Fig. 14: GPUs and cores allocated over time."""
    drawn = jobs.draw(preset, seed)
    stories = {system: cluster.run(drawn, system, preset, seed).moments for system in (TUNED, FIXED, MAXTP)}
    panels = [
        Panel(
            title=title,
            x="minutes",
            y="allocated",
            x_limits=(0, 1500),
            y_limits=(0, 1.03),
            curves=[
                Curve([at.at for at in moments], [getattr(at, part) for at in moments], system.name, colour, "steps")
                for (system, moments), colour in zip(stories.items(), (GREY, ORANGE, BLUE), strict=True)
            ],
        )
        for title, part in (("GPUs", "gpus"), ("cores", "cpus"))
    ]
    return charts.draw(path, panels, title="Fig. 14: what is allocated over time", size=(9, 3.2))


def _walk(path: pathlib.Path) -> pathlib.Path:
    """Draw Fig. 13 in virtual time."""
    stands = walk(MODELS["ResNet18"]).stands
    at = [place / 2 for place in range(len(stands))]
    speed = Curve(at, [stand.speed for stand in stands], style="steps")
    feeding = [stand.data_workers * stand.data_worker_cpu for stand in stands]
    cores = (
        Curve(at, feeding, "data workers", BLUE, "steps"),
        Curve(at, [stand.trainer_cpu for stand in stands], "trainer", RED, "steps"),
    )
    panels = (
        Panel(x="minutes", y="of the ideal speed", curves=[speed], y_limits=(0, 1.03)),
        Panel(x="minutes", y="cores", curves=cores),
    )
    title = "Fig. 13: a ResNet18 job is tuned, in virtual time"
    return charts.draw(path, panels, title=title, size=(9, 3.2))


def _gains(path: pathlib.Path, found: Sequence[Row]) -> pathlib.Path:
    varied = [row for row in found if row.figure == "sensitivity"]
    names = list(dict.fromkeys(row.what.rpartition(": ")[0] for row in varied))
    curves = []
    for mark, colour, system in zip("os^Dv", (GREY, ORANGE, GREEN, BLUE, PURPLE), SYSTEMS[1:], strict=True):
        gains = [row.ours or 0.0 for row in varied if row.what.endswith(f": {system.name}, JCT gain")]
        curves.append(Curve(gains, list(range(len(gains))), system.name, colour, mark))
    panel = Panel(
        title="How gains change with what the text does not give",
        x="JCT gain over No DW (tuned)",
        curves=curves,
        y_ticks=names,
        lines=(("x", 1.0),),
    )
    return charts.draw(path, [panel], size=(9, 0.9 + 0.4 * len(names)))
