"""Reproduce Kale (003): all rows.

In: seeds (days of each kind of traffic), optionally traces. Kinds of traffic are simulated in parallel processes.
Real jobs use the same planner, `springtide.planning.online`. Next: `comparison`, `rows`, `throughput`.
"""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide import errors
from springtide_lab.bench.core import harness
from springtide_lab.reproduce import runner
from springtide_lab.reproduce.kale import auc, comparison, rows, schemes, throughput, world
from springtide_lab.reproduce.kale.comparison import Compared, TrafficKind
from springtide_lab.reproduce.kale.world import Trace
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

    By default, return the traces in data/traces of the current folder or of a folder beside it.
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
    return Reproduced(found, facts)


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
