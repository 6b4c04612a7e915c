"""Figures 7 and 10-13 of DLRover-RM as pictures: one job at a time on the test bed.

In: seeds. Out: PNG files, each with a sentence that says what it shows. Next: `reproduction` puts them on a page, with
those of `figures_days`.
"""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import Profile
from springtide.planning.perf_model import equations, fit
from springtide.planning.perf_model.equations import Shapes
from springtide.sim import report
from springtide.sim.engine import systems
from springtide.sim.world import parameters
from springtide.sim.world import world as physics
from springtide.sim.world.parameters import MODELS
from springtide_lab.reproduce.dlrover_rm import testbed, trouble
from springtide_lab.reproduce.report import Picture, save

NAMES = {
    "static": "tuned by hand",
    "springtide": "Springtide",
    "es": "ES",
    "optimus": "Optimus",
    "optimus_one": "Optimus, a node at a time",
}
COLOURS = {
    "static": "#8c8c8c",
    "springtide": "#1f6fb4",
    "es": "#e08a1e",
    "optimus": "#4a9c5d",
    "optimus_one": "#9b59b6",
}
BAR = 0.8
"""Of the room between two groups, what bars take."""


def draw(folder: pathlib.Path, seeds: Sequence[int]) -> list[Picture]:
    return [
        _completion(folder / "fig7-completion.png", seeds),
        _throughput(folder / "fig10-throughput.png", seeds[0]),
        _fit(folder / "fig11-fit.png", seeds[0]),
        _trouble(folder / "fig12-hot-server.png", seeds, trouble.CASES[0], "Fig. 12: a server with 3% of its cores"),
        _trouble(folder / "fig13-straggler.png", seeds, trouble.CASES[1], "Fig. 13: a worker with 3% of its cores"),
    ]


def bars(
    axis: Any,
    groups: Sequence[str],
    lines: Mapping[str, Sequence[Sequence[float]]],
    colours: Mapping[str, str],
    text: str = "{:.1f}",
) -> None:
    """Groups of bars: medians, with the smallest and the largest as whiskers and the median written above."""
    width = BAR / len(lines)
    for place, (name, values) in enumerate(lines.items()):
        middle = [statistics.median(some) for some in values]
        x = [group - BAR / 2 + width * (place + 0.5) for group in range(len(groups))]
        spread = [
            [m - min(some) for m, some in zip(middle, values, strict=True)],
            [max(some) - m for m, some in zip(middle, values, strict=True)],
        ]
        drawn = axis.bar(
            x, middle, width * 0.92, yerr=spread, label=name, color=colours[name], ecolor="#333333", capsize=2
        )
        axis.bar_label(drawn, labels=[text.format(value) for value in middle], padding=2, fontsize=7)
    axis.set_xticks(range(len(groups)), groups)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.15)


def _completion(path: pathlib.Path, seeds: Sequence[int]) -> Picture:
    """Fig. 7."""
    lines: dict[str, list[list[float]]] = {NAMES[name]: [] for name in ("static", "springtide", "es", "optimus")}
    for model in MODELS.values():
        jobs = [testbed.job_of(model, seed) for seed in seeds]
        for name in ("static", "es", "optimus"):
            lines[NAMES[name]].append([testbed.end(job, name).jct_s / 60 for job in jobs])
        ours = [
            testbed.end(job, "springtide", history=testbed.learned(model, seed)).jct_s / 60
            for job, seed in zip(jobs, seeds, strict=True)
        ]
        lines[NAMES["springtide"]].append(ours)
    figure, axis = report.pyplot().subplots(figsize=(7, 3.6), layout="constrained")
    bars(axis, list(MODELS), lines, {NAMES[name]: colour for name, colour in COLOURS.items()})
    axis.set_ylabel("completion time, minutes")
    axis.set_title("Fig. 7: completion time on the test bed", fontsize=10)
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="upper left")
    return save(figure, path, "Fig. 7: completion times of 200,000 steps, medians over seeds; ours starts warm.")


def _throughput(path: pathlib.Path, seed: int) -> Picture:
    """Fig. 10."""
    figure, axis = report.pyplot().subplots(figsize=(7, 3.6), layout="constrained")
    for name, points in testbed.throughput_curves(seed).items():
        axis.plot(
            [at for at, _ in points],
            [speed for _, speed in points],
            color=COLOURS[name],
            label=NAMES[name],
            lw=2 if name == "springtide" else 1.2,
        )
    axis.axvline(12, color="#bbbbbb", lw=0.8, ls=":")
    axis.axhline(parameters.TUNED_STEPS_S, color="#bbbbbb", lw=0.8, ls=":")
    axis.set(xlabel="minutes since submission", ylabel="steps/s", xlim=(0, 40), ylim=(0, None))
    axis.set_title("Fig. 10: Wide & Deep from a cold start (dotted: the paper's 250 steps/s at 12 min)", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    return save(figure, path, "Fig. 10: throughput over time from a cold start, one seed.")


def _fit(path: pathlib.Path, seed: int) -> Picture:
    """Fig. 11: measured shapes, the model of a few of them, and what it says of the others."""
    job, random = testbed.job_of(MODELS["widedeep"], seed), np.random.default_rng([seed, 11])
    counts = (2, 4, 8, 12, 16, 20, 24, 28, 32)
    shapes = {p: [Shape(workers=w, servers=p, worker_cpu=3, server_cpu=16) for w in counts] for p in (2, 4, 8)}
    seen = {p: [_measured(job, shape, random) for shape in some] for p, some in shapes.items()}
    model = fit.fit([profile for some in seen.values() for profile in some[1::3]], job.facts)
    figure, axis = report.pyplot().subplots(figsize=(7, 3.6), layout="constrained")
    for colour, (servers, some) in zip(("#e08a1e", "#4a9c5d", "#1f6fb4"), seen.items(), strict=True):
        speed = [one.shape.workers / one.step_s for one in some]
        axis.plot(counts, speed, "o", ms=4, mfc="none", color=colour)
        axis.plot(counts[1::3], speed[1::3], "o", ms=4, color=colour)
        if isinstance(model, fit.FittedModel):
            every = np.arange(1, 33, dtype=np.float64)
            same = np.ones_like(every)
            told = equations.throughput(
                model.coefficients, job.facts, Shapes(every, servers * same, 3 * same, 16 * same)
            )
            axis.plot(every, np.asarray(told) / job.facts.batch, color=colour, label=f"{servers} servers")
    axis.set(xlabel="workers of 3 cores", ylabel="steps/s", ylim=(0, None))
    axis.set_title("Fig. 11: fitted to the filled points, asked about the others", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return save(
        figure, path, "Fig. 11: what was measured (filled: what the model was fitted to) and the fitted curves."
    )


def _measured(job: physics.TrueJob, shape: Shape, random: np.random.Generator) -> Profile:
    noise = tuple(np.exp(random.normal(0.0, testbed.WORLD.noise, size=5)).tolist())
    return physics.profile(job, shape, physics.speed(job, shape), steps=100, at=0.0, noise=noise)


def _trouble(path: pathlib.Path, seeds: Sequence[int], case: trouble.TroubleCase, figure: str) -> Picture:
    """Figs. 12 and 13: nothing is done, a restart, or ours; it happens at shares of the job drawn by seed."""
    jobs = case.jobs(seeds)
    cases: dict[str, systems.Mechanisms | None] = {
        "nothing is done": None,
        "stop and restart": trouble.TRADITIONAL,
        "Springtide": systems.Mechanisms(),
    }
    found = {
        name: [[testbed.end(job, "static", mechanisms=how).jct_s / 60 for job in jobs]] for name, how in cases.items()
    }
    drawn, axis = report.pyplot().subplots(figsize=(4.6, 3.4), layout="constrained")
    bars(axis, [""], found, {"nothing is done": "#8c8c8c", "stop and restart": "#e08a1e", "Springtide": "#1f6fb4"})
    axis.set_ylabel("completion time, minutes")
    axis.set_title(figure, fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="upper right")
    less = [
        1 - statistics.median(found["Springtide"][0]) / statistics.median(found[name][0]) for name in list(cases)[:2]
    ]
    said = f"{figure}; ours is {less[0]:.0%} and {less[1]:.0%} below (paper: {case.paper:.1%} and {case.restart:.1%})."
    return save(drawn, path, said)
