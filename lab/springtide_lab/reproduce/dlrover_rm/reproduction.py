"""Reproduce DLRover-RM (000) and DLRover (001): rows and the pictures of Figs. 7 and 9 to 15.

In: seeds and a number of jobs per day. Next: `testbed` and `trouble` simulate one job at a time, `cluster_days` a
cluster.
"""

import functools
import math
import pathlib
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from springtide.domain.core.shape import Shape
from springtide.planning.perf_model import equations, fit
from springtide.planning.perf_model.equations import Shapes
from springtide.sim.engine import systems
from springtide.sim.engine.running_job import JobEnd
from springtide.sim.engine.simulation import Story
from springtide.sim.world import parameters
from springtide.sim.world.parameters import MODELS
from springtide_lab import charts
from springtide_lab.bench.core import harness
from springtide_lab.charts import BLUE, GREEN, GREY, LIGHT, ORANGE, Bar, Curve, Panel
from springtide_lab.reproduce.dlrover_rm import cluster_days, testbed, trouble
from springtide_lab.reproduce.dlrover_rm.cluster_days import ClusterDay
from springtide_lab.reproduce.report import Row
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

QUICK_JOBS, JOBS = 30, 500
POLICIES = {
    "static": ("tuned by hand", GREY),
    "springtide": ("Springtide", BLUE),
    "es": ("ES", ORANGE),
    "optimus": ("Optimus", GREEN),
}
BEFORE, OURS = "as users asked", "Springtide"


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    jobs = options.jobs or (QUICK_JOBS if options.quick else JOBS)
    harness.say(f"test bed: one job at a time, {len(seeds)} seeds")
    rows = [*testbed.rows(seeds), *trouble.rows(seeds)]
    days = []
    for seed in seeds:
        harness.say(f"cluster: {jobs} jobs of seed {seed}, five systems")
        days += cluster_days.days(jobs, [seed])
    rows += cluster_days.rows(days)
    return Reproduced([_finite(row) for row in rows], {"jobs": jobs}, functools.partial(draw, days, list(seeds)))


def _finite(row: Row) -> Row:
    if row.ours is None or math.isfinite(row.ours):
        return row
    return msgspec.structs.replace(row, ours=None, met=None, spread=None, why="no job of that kind finished")


def draw(days: Sequence[ClusterDay], seeds: Sequence[int], folder: pathlib.Path) -> list[pathlib.Path]:
    return [
        _completion(folder / "fig7-completion.png", seeds),
        warm_start(folder / "fig9-warm-start.png", days),
        _throughput(folder / "fig10-throughput.png", seeds[0]),
        _fit(folder / "fig11-fit.png", seeds[0]),
        _trouble(folder / "fig12-hot-server.png", seeds, trouble.CASES[0], "Fig. 12: a server with 3% of its cores"),
        _trouble(folder / "fig13-straggler.png", seeds, trouble.CASES[1], "Fig. 13: a worker with 3% of its cores"),
        _before_and_after(folder / "fig14-production.png", days),
        _times(folder / "fig15-completion-times.png", days),
    ]


def _completion(path: pathlib.Path, seeds: Sequence[int]) -> pathlib.Path:
    bars = []
    for model in MODELS.values():
        for policy in ("static", "springtide", "es", "optimus"):
            name, colour = POLICIES[policy]
            minutes = [
                testbed.end(
                    testbed.job_of(model, seed),
                    policy,
                    history=testbed.learned(model, seed) if policy == "springtide" else (),
                ).jct_s
                / 60
                for seed in seeds
            ]
            bars.append(charts.bar(f"{model.name}: {name}", minutes, colour))
    panel = Panel(title="Fig. 7: completion time on the test bed", x="completion time, minutes", bars=bars)
    return charts.draw(path, [panel])


def _throughput(path: pathlib.Path, seed: int) -> pathlib.Path:
    curves = [
        Curve([at for at, _ in points], [speed for _, speed in points], *POLICIES[name])
        for name, points in testbed.throughput_curves(seed).items()
    ]
    panel = Panel(
        title="Fig. 10: Wide & Deep from a cold start (dotted: the paper's 250 steps/s at 12 min)",
        x="minutes since submission",
        y="steps/s",
        curves=curves,
        x_limits=(0, 40),
        y_limits=(0, None),
        lines=(("x", 12), ("y", parameters.TUNED_STEPS_S)),
    )
    return charts.draw(path, [panel])


def _fit(path: pathlib.Path, seed: int) -> pathlib.Path:
    """Draw Fig. 11: measured shapes, the model fitted to every third, and its prediction for the others."""
    job, random = testbed.job_of(MODELS["widedeep"], seed), np.random.default_rng([seed, 11])
    counts, servers = (2, 4, 8, 12, 16, 20, 24, 28, 32), (2, 4, 8)
    shapes = {p: [Shape(workers=w, servers=p, worker_cpu=3, server_cpu=16) for w in counts] for p in servers}
    profiles = {p: [testbed.measured(job, shape, random) for shape in some] for p, some in shapes.items()}
    model = fit.fit([profile for some in profiles.values() for profile in some[1::3]], job.facts)
    every = np.arange(1, 33, dtype=np.float64)
    curves = []
    for colour, (count, some) in zip((ORANGE, GREEN, BLUE), profiles.items(), strict=True):
        speed = [profile.shape.workers / profile.step_s for profile in some]
        curves.append(Curve(counts, speed, "", colour, "."))
        curves.append(Curve(counts[1::3], speed[1::3], "", colour, "o"))
        if isinstance(model, fit.FittedModel):
            same = np.ones_like(every)
            rate = equations.throughput(model.coefficients, job.facts, Shapes(every, count * same, 3 * same, 16 * same))
            curves.append(
                Curve(every.tolist(), (np.asarray(rate) / job.facts.batch).tolist(), f"{count} servers", colour)
            )
    title = "Fig. 11: fitted to the large points, asked about the others"
    panel = Panel(title=title, x="workers of 3 cores", y="steps/s", curves=curves, y_limits=(0, None))
    return charts.draw(path, [panel])


def _trouble(path: pathlib.Path, seeds: Sequence[int], case: trouble.TroubleCase, title: str) -> pathlib.Path:
    jobs = case.jobs(seeds)
    ways: dict[str, tuple[systems.Mechanisms | None, str]] = {
        "nothing is done": (None, GREY),
        "stop and restart": (trouble.TRADITIONAL, ORANGE),
        "Springtide": (systems.Mechanisms(), BLUE),
    }
    minutes = {
        name: [testbed.end(job, "static", mechanisms=mechanisms).jct_s / 60 for job in jobs]
        for name, (mechanisms, _) in ways.items()
    }
    bars = [charts.bar(name, minutes[name], colour) for name, (_, colour) in ways.items()]
    middle = {name: statistics.median(values) for name, values in minutes.items()}
    less = [1 - middle["Springtide"] / middle[name] for name in list(ways)[:2]]
    title = f"{title}: {less[0]:.0%} and {less[1]:.0%} below (paper: {case.paper:.1%} and {case.restart:.1%})"
    return charts.draw(path, [Panel(title=title, x="completion time, minutes", bars=bars)], size=(7, 2.4))


def warm_start(path: pathlib.Path, days: Sequence[ClusterDay]) -> pathlib.Path:
    """Draw Fig. 9: the first against the last configuration of each job; points on the line did not change."""
    panels = []
    for role, paper in (("workers", 0.92), ("servers", 0.85)):
        pairs = [pair for day in days for pair in cluster_days.first_and_last(day.after, role)]
        ends = [
            0.8 * min([first for first, _ in pairs], default=1.0),
            1.2 * max([last for _, last in pairs], default=1),
        ]
        near = float(np.mean([cluster_days.near(day.after, role) for day in days]))
        right = "no job" if math.isnan(near) else f"{near:.0%} right"
        points = Curve([last for _, last in pairs], [first for first, _ in pairs], style=".")
        panels.append(
            Panel(
                title=f"{role}: {right} (paper: {paper:.0%})",
                x=f"{role} at the end",
                y=f"{role} at the start",
                curves=(Curve(ends, ends, "", LIGHT), points),
            )
        )
    title = "Fig. 9: warm start, first and last configuration"
    return charts.draw(path, panels, title=title, size=(7.6, 3.8))


def _before_and_after(path: pathlib.Path, days: Sequence[ClusterDay]) -> pathlib.Path:
    groups = (
        ("CPU", cluster_days.UTILIZATION[:2]),
        ("memory", cluster_days.UTILIZATION[2:4]),
        ("completed", cluster_days.COMPLETION),
    )
    panels = []
    for title, cases in groups:
        bars: list[Bar] = []
        for case in cases:
            before = [100 * (day.was[case.field] or 0.0) for day in days]
            after = [100 * (day.now[case.field] or 0.0) for day in days]
            bars.append(charts.bar(f"{case.what}: {BEFORE}", before, GREY, 100 * case.before))
            bars.append(charts.bar(f"{case.what}: {OURS}", after, BLUE, 100 * case.after))
        panels.append(Panel(title=title, x="%", bars=bars, x_limits=(0, 110)))
    title = "Fig. 14: use of what was allocated, and jobs completed"
    return charts.draw(path, panels, title=title, size=(12, 3.2))


def _times(path: pathlib.Path, days: Sequence[ClusterDay]) -> pathlib.Path:
    """Draw Fig. 15: the share of finished jobs that had ended by each hour."""
    panels = []
    for title, which in cluster_days.CLASSES.items():
        curves = [
            _cumulative([day.before for day in days], which, BEFORE, GREY, "-"),
            _cumulative([day.after for day in days], which, OURS, BLUE, "-"),
            _cumulative([day.oracle for day in days], which, "oracle", "#222222", "--"),
        ]
        panels.append(Panel(title=title, x="hours", y="of finished jobs", curves=curves))
    return charts.draw(path, panels, title="Fig. 15: completion times", size=(9.6, 3.6))


def _cumulative(stories: Sequence[Story], which: cluster_days.Which, name: str, colour: str, style: str) -> Curve:
    hours = sorted(
        job.jct_s / 3600 for story in stories for job in story.outcomes if job.end is JobEnd.FINISHED and which(job)
    )
    return Curve(hours, [place / len(hours) for place in range(1, len(hours) + 1)], name, colour, style)
